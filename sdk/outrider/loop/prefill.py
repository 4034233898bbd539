"""Prefill: the pieces of a round with many rows; one ragged pass over prompts, whole ones and parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.loop.advance import advance
from outrider.loop.chunk_rows import chunk_rows
from outrider.loop.constrain import RowConstraints, constrain
from outrider.loop.core import DecodeCore
from outrider.loop.outputs import token_logprobs
from outrider.loop.prompts import PrefillPrompt, Span, embeds_of, has_foreign_ids, next_media_of, positions_of
from outrider.loop.rows import RowStore
from outrider.types import Acceptance, AttnBatch, Phase
from outrider.types.outputs import TOKENS_ONLY, CaptureHiddenMode, OutputWants, StepResult
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["Prefilled", "prefill"]


@frozen(eq=False)
class Prefilled:
    """What one pass gave: ``chosen``, the first token of each prompt that ended, if any did.

    ``hidden``: for each span the states of all its tokens (`CaptureHiddenMode.FULL`), or of the last one where its prompt ends;
    empty where nobody wants any.
    """

    chosen: StepResult | None
    hidden: tuple[Tensor, ...]


def prefill(
    core: DecodeCore,
    rows: RowStore,
    first_row: int,
    prompts: Sequence[PrefillPrompt],
    spans: Sequence[Span],
    wants: OutputWants = TOKENS_ONLY,
    constraints: RowConstraints | None = None,
) -> Prefilled:
    """Run ``spans`` of the first of ``prompts`` (`spans_of`), in rows first_row.., and choose what follows those that end.

    Rows whose prompts end were prepared by `RowStore.set_rows`; that of a prompt which is cut is not touched. ``constraints``
    are keyed by the place of the prompt. Changes the state of the former, the KV of target and draft, and the drafter.
    """
    longest = max(span.end for span in spans)
    page_table = rows.page_table(first_row, len(spans))
    chunk = chunk_rows(prompts, spans, page_table, core.kv.page_size)
    batch = AttnBatch(
        query_lens=tuple(span.size for span in spans),
        prefix_lens=chunk.starts,
        page_table=page_table,
        slots=chunk.slots,
        max_length=longest,
        host_prefix_lens=tuple(span.start for span in spans),
    )
    positions = positions_of(core, prompts, spans, chunk.indices)
    embeds = embeds_of(core, prompts, spans, chunk.tokens)
    done = core.run_target(Phase.TARGET_PREFILL, embeds, positions, chunk.totals, batch)

    # Prompts are run in order, so those that end in this pass are its first rows.
    completed = sum(span.completes for span in spans)
    chosen = None
    if completed:
        newest = chunk.last_rows[:completed]
        state = rows.view(first_row, completed, longest)
        hidden = done.hidden.index_select(0, newest)
        acceptance, chosen = _choose(core, state, hidden, wants, constraints or {})
        chunk.next_tokens.index_copy_(0, newest, acceptance.tokens[:, 0])
    if core.drafts:
        media = next_media_of(core, prompts, spans)
        core.drafter.extend(
            VerifiedRows(
                first_row=first_row,
                tokens=chunk.tokens,
                next_tokens=chunk.next_tokens,
                features=done.features,
                indices=chunk.indices,
                positions=positions,
                slots=batch.slots,
                last_rows=chunk.last_rows,
                query_lens=batch.query_lens,
                prefix_lens=batch.prefix_lens,
                page_table=page_table,
                max_length=batch.max_length,
                host_prefix_lens=batch.host_prefix_lens,
                prefill_lengths=chunk.totals,
                next_embeds=None if media is None else media.embeds,
                next_media=None if media is None else media.there,
                foreign_ids=has_foreign_ids(prompts, spans, core.spec.vocab_size),
            )
        )
    return Prefilled(chosen, _wanted_states(done.hidden, spans, chunk.last_rows, wants.hidden))


def _choose(
    core: DecodeCore, state: DecodeState, hidden: Tensor, wants: OutputWants, constraints: RowConstraints
) -> tuple[Acceptance, StepResult]:
    """The first token of each row of ``state``, after the states ``hidden [B, H]``; moves the rows on."""
    logits_B1V = core.target.stack.logits(hidden)[:, None, :]
    nothing = core.nothing.propose(state)
    acceptance = core.verifier.accept(nothing, constrain(logits_B1V, nothing, constraints), state)
    logprobs = top_ids = None
    if wants.logprobs is not None:
        logprobs, top_ids = token_logprobs(logits_B1V, acceptance.tokens, wants.logprobs)
    return acceptance, StepResult(advance(state, acceptance), logprobs, top_ids)


def _wanted_states(
    hidden: Tensor, spans: Sequence[Span], last_rows: Tensor, mode: CaptureHiddenMode
) -> tuple[Tensor, ...]:
    """Per span its states (FULL), or the last one where it completes its prompt (LAST)."""
    if mode is CaptureHiddenMode.NULL:
        return ()
    if mode is CaptureHiddenMode.FULL:
        return torch.split_with_sizes(hidden.clone(), [span.size for span in spans])
    newest = hidden.index_select(0, last_rows)
    return tuple(newest[row : row + 1] if span.completes else newest[:0] for row, span in enumerate(spans))
