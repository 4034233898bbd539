"""Token constraints of some rows of a batch: the logits of every node are masked by what its path allows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider._torch import int_rows
from outrider.interfaces.constraint import TokenConstraint
from outrider.text.constraints import walk_tree
from outrider.text.masks import num_mask_words, unpack_mask
from outrider.types import Proposal

__all__ = ["RowConstraints", "constrain"]

RowConstraints = Mapping[int, TokenConstraint]
"""Constraints by row of the batch; each stands after the row's root."""


def constrain(logits: Tensor, proposal: Proposal, constraints: RowConstraints) -> Tensor:
    """``logits [B, N + 1, V]`` with -inf where a row's constraint does not allow the token after a node.

    Returns ``logits`` itself where no row is constrained. Otherwise it *waits for the device* once, to read the drafted
    tokens: a constraint is host code. Rows without one are left as they are.
    """
    if not constraints:
        return logits
    rows, nodes, vocab = logits.shape
    tokens, parents = int_rows(proposal.tokens), int_rows(proposal.parents)
    words = torch.full((rows, nodes, num_mask_words(vocab)), -1, dtype=torch.int32)
    for row, constraint in constraints.items():
        walk_tree(constraint, tokens[row], parents[row], out=words[row])
    allowed = unpack_mask(words.to(logits.device), vocab)
    return logits.masked_fill(~allowed, float("-inf"))
