"""Masks of a draft tree computed the slow way: a fork of the constraint for every node."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider._torch import int_rows
from outrider.interfaces.constraint import TokenConstraint
from outrider.text import num_mask_words, unpack_mask


def mask_of(constraint: TokenConstraint) -> Tensor:
    mask = torch.full((num_mask_words(constraint.vocab_size),), 0x5A5A5A5A, dtype=torch.int32)
    constraint.fill_mask(mask)
    return mask


def allowed_ids(constraint: TokenConstraint) -> list[int]:
    allowed = unpack_mask(mask_of(constraint), constraint.vocab_size)
    return [row[0] for row in int_rows(allowed.nonzero())]


def by_forking(constraint: TokenConstraint, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
    rows: list[Tensor] = []
    for node in range(len(tokens) + 1):
        path: list[int] = []
        at = node
        while at > 0:
            path.insert(0, tokens[at - 1])
            at = parents[at - 1]
        fork = constraint.fork()
        row = mask_of(fork) if all(fork.advance(token_id) for token_id in path) else torch.zeros(1, dtype=torch.int32)
        rows.append(row if row.any() else torch.full((num_mask_words(constraint.vocab_size),), -1, dtype=torch.int32))
    return torch.stack(rows)
