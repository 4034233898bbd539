"""`StandaloneDraft`: any loaded language model as a draft."""

from __future__ import annotations

import torch
from attrs import evolve
from torch import Tensor

from outrider.binding import check_shared_head
from outrider.checkpoint import check_hot_tokens
from outrider.errors import BindError, CheckpointError, ConformanceError, Problems
from outrider.interfaces import BoundDraft, LayerStackProvider, Target, UnboundDraft
from outrider.types import DraftOutput, DraftSpec, DraftVocab, RowAlignment, StackInputs, WeightSource
from outrider_adapters.nn import head_logits, same_device
from outrider_adapters.standalone.codecs import first_difference

__all__ = ["BoundStandalone", "StandaloneDraft"]


class StandaloneDraft(UnboundDraft):
    """A language model that drafts on its own: no feature of the target, no state between steps but its KV.

    It must speak the target's vocabulary, id for id. ``hot_tokens`` cuts its head to those ids (FR-Spec): they are drafted
    from only, at less cost.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding".
    """

    def __init__(self, model: Target, hot_tokens: tuple[int, ...] | None = None) -> None:
        """``model`` is used as it is, its weights shared; ``hot_tokens``: absolute ids, repeats are dropped.

        Raises:
            CheckpointError: the model cannot draft, or the hot tokens cannot be cut out of its head; all at once.
        """
        self._model = model
        spec = model.stack.spec
        with Problems(f"'{spec.name}' cannot be used as a standalone draft", CheckpointError) as problems:
            if model.rollback is not None:
                problems.add(
                    "it keeps recurrent or sliding state that must be undone after a rejection, which only a target can; "
                    "use a model whose attention is over a KV cache"
                )
            vocab, head, notes = _vocabulary(model, hot_tokens, problems)
        self._head = head
        self._spec = DraftSpec(
            name=spec.name,
            kind="standalone",
            hidden_size=spec.hidden_size,
            layers=spec.layers,
            taps=(),
            target_hidden_size=None,
            state=None,
            vocab=vocab,
            embedding=WeightSource.OWN,
            head=WeightSource.OWN,
            max_positions=spec.max_positions,
            dtype=spec.dtype,
            device=spec.device,
            rope=spec.rope,
            alignment=RowAlignment.SAME,
            needs_lengths=spec.positions.needs_lengths,
            notes=(*model.notes, *notes),
        )

    @property
    def spec(self) -> DraftSpec:
        """What the model is, as a draft."""
        return self._spec

    def bind(self, target: Target) -> BoundStandalone:
        """The draft beside ``target``, with which it shares nothing but the meaning of ids, and for which alone it drafts.

        Raises:
            BindError: another vocabulary (by size, or by what the tokenizers mean by an id), or another device.
        """
        spec, other = self._spec, target.stack.spec
        size = spec.vocab.target_size
        with Problems(f"draft '{spec.name}' does not fit target '{other.name}'", BindError) as problems:
            if size != other.vocab_size:
                problems.add(
                    f"the draft has a vocabulary of {size} ids, the target of {other.vocab_size}; a standalone draft must "
                    "share the target's vocabulary: use a smaller model of the same family"
                )
            elif self._model.codec is not None and target.codec is not None:
                difference = first_difference(self._model.codec, target.codec)
                if difference is not None:
                    problems.add(
                        f"both have {size} ids, but their tokenizers differ: {difference}; use a draft with the target's "
                        "tokenizer"
                    )
            if not same_device(spec.device, other.device):
                problems.add(
                    f"the draft is on {spec.device}, the target on {other.device}; load both on the same device"
                )
        return BoundStandalone(spec, target.stack, self._model.stack, self._head)


class BoundStandalone(BoundDraft):
    """A standalone draft beside its target: verified and drafted rows run alike, through the model's own layers."""

    def __init__(
        self, spec: DraftSpec, bound_to: LayerStackProvider, stack: LayerStackProvider, head: Tensor | None
    ) -> None:
        """``stack``: its own; ``head [Dv, H]``: the hot rows of that model's head, ``None`` for the whole of it."""
        self._spec = spec
        self._bound_to = bound_to
        self._stack = stack
        self._head = head

    @property
    def spec(self) -> DraftSpec:
        """The one source of widths, vocabulary, alignment and limits."""
        return self._spec

    @property
    def bound_to(self) -> LayerStackProvider:
        """The stack of the target whose vocabulary it was compared with."""
        return self._bound_to

    def embed(self, token_ids: Tensor) -> Tensor:
        """The model's embeddings ``[T, H]`` of ids ``[T]`` int64. Device only, safe in a capture."""
        return self._stack.embed(token_ids)

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run verified rows; see `BoundDraft.extend`."""
        if features is not None:
            raise ConformanceError(
                f"standalone draft '{self._spec.name}' is fed no feature, got {list(features.shape)}"
            )
        return self._run(embeds, inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run drafted rows; see `BoundDraft.step`."""
        if state is not None:
            raise ConformanceError(f"standalone draft '{self._spec.name}' carries no state, got {list(state.shape)}")
        return self._run(embeds, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        """Fresh logits ``[R, Dv]`` of `DraftOutput.hidden` rows ``[R, H]``. Device only, safe in a capture."""
        if self._head is None:
            return self._stack.logits(hidden)
        return self._stack.spec.logit_scaling.apply(head_logits(hidden, self._head))

    def _run(self, embeds: Tensor, inputs: StackInputs) -> DraftOutput:
        if self._stack.spec.positions.axes == 3:
            # Text has the same position on every axis.
            inputs = evolve(inputs, positions=inputs.positions.expand(3, -1))
        return DraftOutput(self._stack.run_layers(embeds, inputs).hidden, None)


def _vocabulary(
    model: Target, hot_tokens: tuple[int, ...] | None, problems: Problems
) -> tuple[DraftVocab, Tensor | None, tuple[str, ...]]:
    """The draft vocabulary, the head cut to it (``None`` for the whole) and the note that says so."""
    spec = model.stack.spec
    whole = DraftVocab(spec.vocab_size, spec.vocab_size)
    if hot_tokens is None:
        return whole, None, ()
    known = len(problems)
    hot = check_hot_tokens(hot_tokens, spec.vocab_size, problems)
    if model.weights is None:
        problems.add(
            "hot tokens were given, but its loader offers no SharedWeights to cut its head from; leave them out, or use a "
            "loader that shares them"
        )
    if model.weights is None or len(problems) > known:
        return whole, None, ()
    ids = torch.tensor(hot.ids, dtype=torch.int64, device=spec.device)
    head = model.weights.head.index_select(0, ids)
    for problem in check_shared_head(model.stack, model.weights):
        problems.add(f"hot tokens were given, but its head cannot be cut: {problem}; or leave them out")
    repeats = f", {hot.num_repeats} repeats dropped" if hot.num_repeats else ""
    note = f"head: the draft's own, cut to {len(hot.ids)} hot tokens in the order given{repeats}"
    return DraftVocab(len(hot.ids), spec.vocab_size, ids), head, (note,)
