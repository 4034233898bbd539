"""Drafts for toy targets: a random one (always wrong, or nearly so) and one that equals its target (always right)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import BoundDraft, LayerStackProvider, Target
from outrider.types import (
    DraftOutput,
    DraftSpec,
    DraftVocab,
    HiddenTap,
    ModelSpec,
    RecurrentState,
    RowAlignment,
    StackInputs,
    WeightSource,
)
from tests.support.toy_target import CPU, ToyLayer, ToySizes, ToyStack, random_matrix, rms_norm

__all__ = ["SelfDraft", "ToyDraft", "draft_vocab", "self_pair"]


def draft_vocab(model: ModelSpec, ids: Sequence[int] | None) -> DraftVocab:
    """The whole vocabulary of ``model``, or its ``ids`` only."""
    if ids is None:
        return DraftVocab(model.vocab_size, model.vocab_size)
    return DraftVocab(len(ids), model.vocab_size, torch.tensor(list(ids)))


class ToyDraft(BoundDraft):
    """One random layer of its own width. With ``taps`` it is fed features, with ``recurrent`` it hands a state on."""

    def __init__(
        self,
        target: Target,
        *,
        taps: tuple[HiddenTap, ...] = (),
        recurrent: bool = False,
        ids: Sequence[int] | None = None,
        seed: int = 1,
        hidden: int = 12,
        max_positions: int = 96,
        max_draft_tokens: int | None = None,
    ) -> None:
        model = target.stack.spec
        self._bound_to = target.stack
        sizes = ToySizes(hidden=hidden, layers=1, heads=2, kv_heads=2, head_dim=6, max_positions=max_positions)
        vocab = draft_vocab(model, ids)
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(model.vocab_size, hidden, generator=generator)
        self.head = random_matrix(generator, vocab.size, hidden) * 3.0
        self.layer = ToyLayer.random(sizes, generator)
        self.fuse = random_matrix(generator, hidden, max(len(taps) * model.hidden_size, 1))
        self.carry = random_matrix(generator, hidden, hidden + 3)
        self.widen = random_matrix(generator, hidden + 3, hidden)
        self._spec = DraftSpec(
            name="toy draft",
            kind="toy",
            hidden_size=hidden,
            layers=(sizes.attention,),
            taps=taps,
            target_hidden_size=model.hidden_size,
            # Wider than the draft itself, so that the two cannot be mixed up.
            state=RecurrentState(hidden + 3, torch.float32) if recurrent else None,
            vocab=vocab,
            embedding=WeightSource.OWN,
            head=WeightSource.OWN,
            max_positions=max_positions,
            dtype=torch.float32,
            device=CPU,
            max_draft_tokens=max_draft_tokens,
        )

    @property
    def spec(self) -> DraftSpec:
        return self._spec

    @property
    def bound_to(self) -> LayerStackProvider:
        return self._bound_to

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.embedding.index_select(0, token_ids)

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return self.run(embeds if features is None else embeds + features @ self.fuse.T, inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return self.run(embeds if state is None else embeds + state @ self.carry.T, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head.T

    def run(self, rows: Tensor, inputs: StackInputs) -> DraftOutput:
        out = self.layer.forward(rows, 0, inputs.positions, inputs.attend)
        return DraftOutput(rms_norm(out), out @ self.widen.T if self._spec.state is not None else None)


class SelfDraft(BoundDraft):
    """The target itself as its draft: always right.

    With rows of `RowAlignment.SAME` it reads what the target reads. With SHIFTED ones, it serves a target with ``null_first``
    and prompts that begin with id 0: it is fed tokens from the second on. What it misses, the first one, has keys and values
    of zero in every layer: in the target it is one logit of 0 in each softmax and gives nothing. Sinks of 0 are just that.
    Its rotary positions are all lower by one, which changes no difference between two.
    """

    def __init__(
        self,
        target: Target,
        stack: ToyStack,
        ids: Sequence[int] | None = None,
        alignment: RowAlignment = RowAlignment.SHIFTED,
    ) -> None:
        model = target.stack.spec
        shifted = alignment is RowAlignment.SHIFTED
        self._stack, self._bound_to = stack, target.stack
        vocab = draft_vocab(model, ids)
        self._head = stack.weights.head if vocab.target_ids is None else stack.weights.head[vocab.target_ids]
        self._spec = DraftSpec(
            name="self",
            kind="toy",
            hidden_size=model.hidden_size,
            layers=tuple(
                evolve(layer, sinks=torch.zeros(layer.num_heads)) if shifted else layer for layer in model.layers
            ),
            alignment=alignment,
            taps=(),
            target_hidden_size=model.hidden_size,
            state=None,
            vocab=vocab,
            embedding=WeightSource.TARGET,
            head=WeightSource.TARGET if vocab.is_full else WeightSource.TARGET_SLICED,
            max_positions=model.max_positions,
            dtype=model.dtype,
            device=model.device,
        )

    @property
    def spec(self) -> DraftSpec:
        return self._spec

    @property
    def bound_to(self) -> LayerStackProvider:
        return self._bound_to

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._stack.embed(token_ids)

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return DraftOutput(self._stack.run_layers(embeds, inputs).hidden, None)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return DraftOutput(self._stack.run_layers(embeds, inputs).hidden, None)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._head.T


def self_pair(
    seed: int = 0,
    ids: Sequence[int] | None = None,
    sizes: ToySizes | None = None,
    alignment: RowAlignment = RowAlignment.SHIFTED,
) -> tuple[Target, SelfDraft]:
    """A target and the draft that equals it; prompts must begin with id 0."""
    stack = ToyStack(sizes, seed, null_first=True)
    target = Target(stack, stack.weights)
    return target, SelfDraft(target, stack, ids, alignment)
