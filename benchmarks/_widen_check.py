"""Is a widened pair still the pair? Logits and drafts compared number for number, text and acceptance with the cases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from attrs import frozen
from torch import Tensor

from benchmarks._cases import Case, TokenIds
from outrider import ChainBuilder, EngineOptions, SpeculativeModel
from outrider.interfaces import BoundDraft, DrafterBuilder, Target
from outrider.types import Attend, AttentionSpec, DraftOutput, StackInputs
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["Differences", "Finding", "chain", "compare", "texts_and_lengths"]

MAX_NEW_TOKENS = 64


@frozen
class Differences:
    """How far a widened pair is from the small one, over all positions of some texts.

    ``logits`` and ``draft_logits``: largest difference over the small vocabularies. ``margin`` and ``draft_margin``:
    how far the best padding id stays below the best real one where it comes closest. ``stray``: largest number in the
    added columns of the target's final hidden state, of the features and of the draft's state, all of which must be 0.
    ``padding_share`` and ``draft_padding_share``: largest probability of all padding ids together at temperature 1.
    """

    logits: float
    draft_logits: float
    margin: float
    draft_margin: float
    stray: float
    padding_share: float
    draft_padding_share: float


@frozen
class Finding:
    """One way of decoding: rounds with drafts, tokens per round, and how many prompts differ from the cases in either."""

    name: str
    num_wrong_texts: int
    num_wrong_rounds: int
    rounds: int
    acceptance: float


@frozen(eq=False)
class _Passes:
    """All numbers of one pair for one text: target, then the draft's verified rows, then drafted rows on their state."""

    logits: Tensor
    draft_logits: Tensor
    streams: Tensor

    @classmethod
    def run(cls, target: Target, draft: BoundDraft, token_ids: TokenIds) -> _Passes:
        stack, taps = target.stack, draft.spec.taps
        ids = torch.tensor(token_ids, device=stack.spec.device)
        positions = torch.arange(len(token_ids), device=stack.spec.device)
        output = stack.run_layers(stack.embed(ids), StackInputs(positions, _attend(stack.spec.layers), taps))
        inputs = StackInputs(positions[:-1], _attend(draft.spec.layers))
        embeds = draft.embed(ids[1:])
        verified = draft.extend(embeds, torch.cat(output.taps, dim=-1)[:-1], inputs)
        drafted = draft.step(embeds, verified.state, inputs)
        states = (output.hidden, *output.taps, _state(verified), _state(drafted))
        return cls(
            stack.logits(output.hidden),
            draft.logits(torch.cat((verified.hidden, drafted.hidden))),
            torch.cat(states),
        )


@torch.inference_mode()
def compare(
    small: tuple[Target, BoundDraft], wide: tuple[Target, BoundDraft], texts: Sequence[TokenIds]
) -> Differences:
    """`Differences` of two pairs of the same dtype, the largest over ``texts``; the devices may differ. Synchronises."""
    worst = Differences(0.0, 0.0, torch.inf, torch.inf, 0.0, 0.0, 0.0)
    for text in texts:
        ours, theirs = _Passes.run(*wide, text), _Passes.run(*small, text)
        vocab, draft_vocab = theirs.logits.shape[1], theirs.draft_logits.shape[1]
        columns = theirs.streams.shape[1]
        worst = Differences(
            max(worst.logits, _largest(ours.logits[:, :vocab].cpu() - theirs.logits.cpu())),
            max(worst.draft_logits, _largest(ours.draft_logits[:, :draft_vocab].cpu() - theirs.draft_logits.cpu())),
            min(worst.margin, _margin(ours.logits, vocab)),
            min(worst.draft_margin, _margin(ours.draft_logits, draft_vocab)),
            max(worst.stray, _largest(ours.streams[:, columns:])),
            max(worst.padding_share, _padding_share(ours.logits, vocab)),
            max(worst.draft_padding_share, _padding_share(ours.draft_logits, draft_vocab)),
        )
    return worst


def texts_and_lengths(
    target: Target,
    cases: Sequence[Case],
    drafts: Sequence[tuple[str, DrafterBuilder | None, Sequence[TokenIds]]],
) -> list[Finding]:
    """One `Finding` for each of ``drafts``: a name, a drafter, and what its rounds accept, for the first of the cases."""
    options = EngineOptions(max_batch_size=len(cases), max_length=256)
    findings: list[Finding] = []
    for name, builder, lengths in drafts:
        model = SpeculativeModel(target, builder, attention=SdpaBackend(), runner=EagerRunner, options=options)
        prompts = [case.prompt for case in cases]
        found = model.generate_batch(prompts, max_new_tokens=MAX_NEW_TOKENS).completions
        model.close()
        rounds = [length for one in found if builder is not None for length in one.accept_lengths]
        findings.append(
            Finding(
                name,
                sum(one.token_ids != case.continuation for one, case in zip(found, cases, strict=True)),
                # What trees accept is known for the first prompts only.
                sum(one.accept_lengths != wanted for one, wanted in zip(found, lengths, strict=False)),
                len(rounds),
                sum(rounds) / max(len(rounds), 1),
            )
        )
    return findings


def chain(
    draft: BoundDraft, length: int, lengths: Sequence[TokenIds]
) -> tuple[str, DrafterBuilder, Sequence[TokenIds]]:
    """A chain as `texts_and_lengths` wants it."""
    return f"chain of {length}", ChainBuilder(draft, length), lengths


def _attend(layers: Sequence[AttentionSpec]) -> Attend:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))
        scale = layers[layer].scale
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return mixed.transpose(0, 1)

    return attend


def _state(output: DraftOutput) -> Tensor:
    assert output.state is not None  # EAGLE drafts carry one
    return output.state


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _margin(logits: Tensor, num_real: int) -> float:
    if num_real == logits.shape[1]:
        return torch.inf
    real, padding = logits[:, :num_real].amax(dim=-1), logits[:, num_real:].amax(dim=-1)
    return float((real - padding).min())


def _padding_share(logits: Tensor, num_real: int) -> float:
    return _largest(logits.softmax(dim=-1)[:, num_real:].sum(dim=-1))
