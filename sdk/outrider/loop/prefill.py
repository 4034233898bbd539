"""Prefill: the pieces of a round with many rows; chunked, ragged, many requests at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.drafting.none import NoDrafter
from outrider.kv import slots_of_rows
from outrider.loop.advance import advance
from outrider.loop.constrain import RowConstraints, constrain
from outrider.loop.core import DecodeCore, TargetPass
from outrider.loop.outputs import token_logprobs
from outrider.loop.prompts import (
    PrefillPrompt,
    Span,
    chunks,
    embeds_of,
    has_foreign_ids,
    next_media_of,
    positions_of,
)
from outrider.loop.rows import RowStore
from outrider.types import AttnBatch, Phase
from outrider.types.outputs import TOKENS_ONLY, CaptureHiddenMode, OutputWants, StepResult
from outrider.types.state import VerifiedRows

__all__ = ["PrefillPrompt", "prefill"]


def prefill(
    core: DecodeCore,
    rows: RowStore,
    first_row: int,
    prompts: Sequence[PrefillPrompt],
    wants: OutputWants = TOKENS_ONLY,
    constraints: RowConstraints | None = None,
) -> StepResult:
    """Run ``prompts`` in rows first_row.. (prepared by `RowStore.set_row`) and emit the first token of each.

    ``constraints`` are keyed by the place of the prompt. At most `DecodeCore.max_prefill_tokens`
    tokens go through the target at once. Changes the rows' state, the KV of target and draft, and the drafter.
    """
    parts = [
        _run_chunk(core, rows, first_row, prompts, spans, wants, constraints or {})
        for spans in chunks(prompts, core.max_prefill_tokens)
    ]
    asks_logprobs = wants.logprobs is not None
    return StepResult(
        torch.cat([part.packed for part in parts]),
        torch.cat([part.logprobs for part in parts]) if asks_logprobs else None,
        torch.cat([part.top_ids for part in parts]) if asks_logprobs else None,
        _hidden_of_prompts(parts, len(prompts)) if wants.hidden is not CaptureHiddenMode.NULL else None,
    )


def _hidden_of_prompts(parts: list[_Chunk], num_prompts: int) -> tuple[Tensor, ...]:
    states: list[list[Tensor]] = [[] for _ in range(num_prompts)]
    for part in parts:
        for span, state in zip(part.spans, part.hidden, strict=True):
            states[span.index].append(state)
    return tuple(torch.cat(state) for state in states)


@frozen(eq=False)
class _Chunk:
    """What one chunk gave: for the prompts it completed ``packed``, ``logprobs``, ``top_ids``; for each span its states."""

    spans: list[Span]
    packed: Tensor
    logprobs: Tensor
    top_ids: Tensor
    hidden: tuple[Tensor, ...]


def _run_chunk(
    core: DecodeCore,
    rows: RowStore,
    first_row: int,
    prompts: Sequence[PrefillPrompt],
    spans: list[Span],
    wants: OutputWants,
    constraints: RowConstraints,
) -> _Chunk:
    device = core.spec.device
    first = first_row + spans[0].index
    longest = max(span.end for span in spans)
    state = rows.view(first, len(spans), longest)
    columns = _host_columns(prompts, spans).to(device, non_blocking=True)
    token_ids, next_tokens, indices, row_of, totals = columns
    ends = torch.tensor([span.size for span in spans]).cumsum(0)
    last_rows = (ends - 1).to(device, non_blocking=True)
    batch = AttnBatch(
        query_lens=tuple(span.size for span in spans),
        prefix_lens=torch.tensor([span.start for span in spans]).to(device, non_blocking=True),
        page_table=state.page_table,
        slots=slots_of_rows(state.page_table, row_of, indices, core.kv.page_size),
        max_length=longest,
        host_prefix_lens=tuple(span.start for span in spans),
    )
    positions = positions_of(core, prompts, spans, indices)
    embeds = embeds_of(core, prompts, spans, token_ids)
    done = core.run_target(Phase.TARGET_PREFILL, embeds, positions, totals, batch)

    # Prompts are cut in order, so those that complete in this chunk are its first rows.
    completed = sum(span.completes for span in spans)
    finished = rows.view(first, completed, longest)
    newest = last_rows[:completed]
    logits = core.target.stack.logits(done.hidden.index_select(0, newest))
    nothing = NoDrafter(completed, device).propose(finished)
    here = {row: constraints[span.index] for row, span in enumerate(spans[:completed]) if span.index in constraints}
    acceptance = core.verifier.accept(nothing, constrain(logits[:, None, :], nothing, here), finished)
    if core.drafts:
        next_tokens = next_tokens.index_copy(0, newest, acceptance.tokens[:, 0])
        verified = _verified(batch, done, first, token_ids, next_tokens, indices, positions, last_rows, totals)
        media = next_media_of(core, prompts, spans)
        core.drafter.extend(
            evolve(
                verified,
                next_embeds=None if media is None else media.embeds,
                next_media=None if media is None else media.there,
                foreign_ids=has_foreign_ids(prompts, spans, core.spec.vocab_size),
            )
        )
    logprobs, top_ids = logits.new_empty(0), newest[:0]
    if wants.logprobs is not None:
        logprobs, top_ids = token_logprobs(logits[:, None, :], acceptance.tokens, wants.logprobs)
    hidden = _wanted_states(done.hidden, spans, last_rows, wants.hidden)
    return _Chunk(spans, advance(finished, acceptance), logprobs, top_ids, hidden)


def _wanted_states(hidden: Tensor, spans: list[Span], last_rows: Tensor, mode: CaptureHiddenMode) -> tuple[Tensor, ...]:
    """Per span its states (FULL), or the last one where it completes its prompt (LAST)."""
    if mode is CaptureHiddenMode.NULL:
        return ()
    if mode is CaptureHiddenMode.FULL:
        return torch.split_with_sizes(hidden.clone(), [span.size for span in spans])
    newest = hidden.index_select(0, last_rows)
    return tuple(newest[row : row + 1] if span.completes else newest[:0] for row, span in enumerate(spans))


def _verified(
    batch: AttnBatch,
    done: TargetPass,
    first_row: int,
    token_ids: Tensor,
    next_tokens: Tensor,
    indices: Tensor,
    positions: Tensor,
    last_rows: Tensor,
    totals: Tensor,
) -> VerifiedRows:
    return VerifiedRows(
        first_row=first_row,
        tokens=token_ids,
        next_tokens=next_tokens,
        features=done.features,
        indices=indices,
        positions=positions,
        slots=batch.slots,
        last_rows=last_rows,
        query_lens=batch.query_lens,
        prefix_lens=batch.prefix_lens,
        page_table=batch.page_table,
        max_length=batch.max_length,
        host_prefix_lens=batch.host_prefix_lens,
        prefill_lengths=totals,
    )


def _host_columns(prompts: Sequence[PrefillPrompt], spans: list[Span]) -> Tensor:
    """``[5, T]`` int64: token, next token (0 where it is not known yet), index, row within the chunk, prompt length."""
    columns: list[list[int]] = [[], [], [], [], []]
    for row, span in enumerate(spans):
        ids = prompts[span.index].token_ids
        columns[0] += ids[span.start : span.end]
        columns[1] += [*ids[span.start + 1 : span.end + 1], *([0] if span.completes else [])]
        columns[2] += range(span.start, span.end)
        columns[3] += [row] * span.size
        columns[4] += [span.total] * span.size
    return torch.tensor(columns, dtype=torch.int64)
