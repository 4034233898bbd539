"""The rows of one chunk of prompts on the device: all that the host knows of them, in one copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from outrider._torch import uploaded
from outrider.kv import KnownSlots
from outrider.loop.prompts import PrefillPrompt, Span

__all__ = ["ChunkRows", "chunk_rows"]


@frozen(eq=False)
class ChunkRows:
    """T rows of n prompts, all int64 and views of one tensor.

    ``[T]``: ``tokens``; ``next_tokens``, 0 where one is not known yet; sequence ``indices``; ``totals``, the length of each
    row's prompt; cache ``slots``. ``[n]``: ``last_rows``, where each span ends, and ``starts``, what precedes it.
    """

    tokens: Tensor
    next_tokens: Tensor
    indices: Tensor
    totals: Tensor
    slots: Tensor
    last_rows: Tensor
    starts: Tensor


def chunk_rows(
    prompts: Sequence[PrefillPrompt], spans: Sequence[Span], page_table: Tensor, page_size: int
) -> ChunkRows:
    """The rows of ``spans``, whose prompts own the rows of ``page_table``; nothing waits for the device."""
    tokens, next_tokens, indices, totals, ends = (array("q") for _ in range(5))
    known = KnownSlots(page_table.shape[1], page_size)
    for row, span in enumerate(spans):
        ids = prompts[span.index].token_ids
        tokens.extend(ids[span.start : span.end])
        next_tokens.extend(ids[span.start + 1 : span.end + 1])
        if span.completes:
            next_tokens.append(0)
        indices.extend(range(span.start, span.end))
        totals.extend([span.total] * span.size)
        known.add(row, span.start, span.end)
        ends.append(len(tokens) - 1)
    starts = array("q", [span.start for span in spans])
    columns = (tokens, next_tokens, indices, totals, known.entries, known.offsets, ends, starts)
    packed = uploaded(sum(columns, array("q")), page_table.device)
    on_device = packed.split_with_sizes([len(column) for column in columns])
    tokens_T, next_tokens_T, indices_T, totals_T, entries_T, offsets_T, last_rows, prefix_lens = on_device
    slots_T = known.slots(page_table, entries_T, offsets_T)
    return ChunkRows(tokens_T, next_tokens_T, indices_T, totals_T, slots_T, last_rows, prefix_lens)
