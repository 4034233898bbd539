"""Verified pairs as a standalone draft reads them: tokens alone, each at its own index."""

from __future__ import annotations

from array import array

import torch
from attrs import evolve

from outrider._torch import uploaded
from outrider.kv import KnownSlots, slots_of
from outrider.types.state import VerifiedRows

__all__ = ["token_rows"]


def token_rows(rows: VerifiedRows, page_size: int) -> VerifiedRows:
    """``rows`` for a draft of `RowAlignment.SAME`: ``tokens`` and ``next_tokens`` are both what it reads, at ``indices``.

    Pair i becomes token i + 1 at index i + 1: token i was read with the pair before it. Only the first token of a sequence
    follows no pair, so where a prompt begins it is put in front. The newest row is then the root of the next round.

    In a round: device only, static shapes, safe in a capture. In prefill the host knows the sizes and uploads them.
    """
    if rows.host_prefix_lens is not None:
        return _of_prompts(rows, rows.host_prefix_lens, page_size)
    indices = rows.indices + 1
    slots = slots_of(rows.page_table, indices.view(len(rows.query_lens), -1), page_size)
    return evolve(
        rows,
        tokens=rows.next_tokens,
        features=None,
        next_embeds=None,
        next_media=None,
        indices=indices,
        positions=indices,
        slots=slots.reshape(-1),
        prefix_lens=rows.prefix_lens + 1,
        max_length=rows.max_length + 1,
    )


def _of_prompts(rows: VerifiedRows, starts: tuple[int, ...], page_size: int) -> VerifiedRows:
    begins = [int(start == 0) for start in starts]
    num_pairs = sum(rows.query_lens)
    # Where each row comes from: 0 .. T - 1 are the pairs' own tokens, T .. 2T - 1 the tokens after them.
    picks, indices, last_rows = array("q"), array("q"), array("q")
    known = KnownSlots(rows.page_table.shape[1], page_size)
    first = 0
    for row, (count, start, begin) in enumerate(zip(rows.query_lens, starts, begins, strict=True)):
        picks.extend([*[first] * begin, *range(num_pairs + first, num_pairs + first + count)])
        indices.extend(range(start + 1 - begin, start + 1 + count))
        known.add(row, start + 1 - begin, start + 1 + count)
        last_rows.append(len(picks) - 1)
        first += count
    kept = array("q", [start + int(start > 0) for start in starts])
    columns = (picks, indices, known.entries, known.offsets, last_rows, kept)
    packed = uploaded(sum(columns, array("q")), rows.indices.device)
    on_device = packed.split_with_sizes([len(column) for column in columns])
    pick_T, indices_T, entries_T, offsets_T, last_rows_B, prefix_lens_B = on_device
    read = torch.cat([rows.tokens, rows.next_tokens]).index_select(0, pick_T)
    lengths = rows.prefill_lengths
    if lengths is not None:
        # The token that the target chose after a prompt was encoded with the prompt and itself.
        lengths = torch.cat([lengths, lengths]).index_select(0, pick_T).maximum(indices_T + 1)
    return evolve(
        rows,
        tokens=read,
        next_tokens=read,
        features=None,
        next_embeds=None,
        next_media=None,
        indices=indices_T,
        positions=indices_T,
        slots=known.slots(rows.page_table, entries_T, offsets_T),
        last_rows=last_rows_B,
        query_lens=tuple(count + begin for count, begin in zip(rows.query_lens, begins, strict=True)),
        prefix_lens=prefix_lens_B,
        max_length=rows.max_length + 1,
        host_prefix_lens=tuple(kept),
        prefill_lengths=lengths,
    )
