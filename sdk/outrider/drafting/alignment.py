"""Verified pairs as a standalone draft reads them: tokens alone, each at its own index."""

from __future__ import annotations

import torch
from attrs import evolve

from outrider.kv import slots_of, slots_of_rows
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
    picks: list[int] = []
    row_of: list[int] = []
    added: list[int] = []
    first = 0
    for row, (count, begin) in enumerate(zip(rows.query_lens, begins, strict=True)):
        picks += [*[first] * begin, *range(num_pairs + first, num_pairs + first + count)]
        row_of += [row] * (count + begin)
        added.append(begin + (added[-1] if added else 0))
        first += count
    device = rows.indices.device
    pick, row = torch.tensor([picks, row_of]).to(device, non_blocking=True)
    read = torch.cat([rows.tokens, rows.next_tokens])[pick]
    indices = torch.cat([rows.indices, rows.indices + 1])[pick]
    lengths = rows.prefill_lengths
    if lengths is not None:
        # The token that the target chose after a prompt was encoded with the prompt and itself.
        lengths = torch.cat([lengths, lengths])[pick].maximum(indices + 1)
    return evolve(
        rows,
        tokens=read,
        next_tokens=read,
        features=None,
        next_embeds=None,
        next_media=None,
        indices=indices,
        positions=indices,
        slots=slots_of_rows(rows.page_table, row, indices, page_size),
        last_rows=rows.last_rows + torch.tensor(added).to(device, non_blocking=True),
        query_lens=tuple(count + begin for count, begin in zip(rows.query_lens, begins, strict=True)),
        prefix_lens=rows.prefix_lens + (rows.prefix_lens > 0),
        max_length=rows.max_length + 1,
        host_prefix_lens=tuple(start + int(start > 0) for start in starts),
        prefill_lengths=lengths,
    )
