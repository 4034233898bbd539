"""What a constraint allows at every node of a draft tree, and moving it along the tokens that were emitted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.errors import InputError
from outrider.interfaces.constraint import TokenConstraint
from outrider.text.masks import num_mask_words, unpack_mask

__all__ = ["advance_path", "check_start", "walk_tree"]

_ALL = -1
"""An int32 word with every bit set."""


def walk_tree(
    constraint: TokenConstraint,
    tokens: Sequence[int],
    parents: Sequence[int],
    out: Tensor | None = None,
) -> Tensor:
    """``[N + 1, ceil(V / 32)]`` int32 bit masks on the CPU: the tokens allowed after each node of one request's tree.

    ``constraint`` stands after the root (node 0) and stands there again afterwards. ``tokens`` and ``parents`` are one
    row of `Proposal.tokens` and `Proposal.parents` on the host: N drafted tokens, and the node id of each one's parent,
    which precedes it. ``out``: written and returned in place of a new tensor, e.g. a row of a pinned buffer.

    A node that the constraint does not allow, or that lies below one, or below an end-of-sequence id, can never be
    accepted; every bit of its row is set, so that the masked logits of no row are -inf throughout. The same goes for
    a node after which no token is allowed (a dead end): `advance_path` reports it should the sequence go there.
    Where the constraint raises (a user's interrupt), that reaches the caller, and the constraint stands after the root.
    """
    if len(tokens) != len(parents):
        raise InputError(f"walk_tree: {len(tokens)} tokens and {len(parents)} parents; every drafted token needs one")
    num_nodes, num_words = len(tokens) + 1, num_mask_words(constraint.vocab_size)
    masks = torch.empty(num_nodes, num_words, dtype=torch.int32) if out is None else out
    if masks.shape != (num_nodes, num_words) or masks.dtype != torch.int32 or masks.device.type != "cpu":
        raise InputError(
            f"walk_tree: out is {list(masks.shape)} {masks.dtype} on {masks.device}, "
            f"expected [{num_nodes}, {num_words}] torch.int32 on cpu"
        )
    children: list[list[int]] = [[] for _ in range(num_nodes)]
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise InputError(
                f"walk_tree: node {node} has parent {parent}; a parent is a node before it, 0 to {node - 1}"
            )
        children[parent].append(node)
    masks.fill_(_ALL)
    _fill_reachable(constraint, tokens, children, masks)
    return masks


def _fill_reachable(
    constraint: TokenConstraint, tokens: Sequence[int], children: Sequence[Sequence[int]], masks: Tensor
) -> None:
    """Depth first, by a stack of nodes to enter (≥ 0) and of one token to take back (-1) after each subtree."""
    leave = -1
    stack = [0]
    try:
        while stack:
            node = stack.pop()
            if node == leave:
                constraint.rollback(1)
                continue
            if node > 0:
                if not constraint.advance(tokens[node - 1]):
                    continue
                stack.append(leave)
            _fill_row(constraint, masks[node])
            stack.extend(reversed(children[node]))
    finally:
        if leave in stack:
            constraint.rollback(stack.count(leave))


def _fill_row(constraint: TokenConstraint, row: Tensor) -> None:
    constraint.fill_mask(row)
    if not row.any():
        row.fill_(_ALL)


def advance_path(constraint: TokenConstraint, token_ids: Sequence[int]) -> None:
    """Moves ``constraint`` past the tokens that a round emitted.

    Raises:
        InputError: one of them is not allowed. After `walk_tree` masks that happens only at a dead end of the grammar,
            or where another option (banned or allowed ids, a minimum length) forbids all that the grammar allows. The
            constraint then stands before that token.
    """
    for index, token_id in enumerate(token_ids):
        if not constraint.advance(token_id):
            raise InputError(
                f"constraint: token {token_id} (number {index} of {len(token_ids)} emitted) is not allowed; "
                f"{_describe_allowed(constraint)}. Loosen the grammar, or the options that ban or require tokens"
            )


def check_start(constraint: TokenConstraint, what: str) -> None:
    """Refuses a constraint under which nothing can be generated; ``what`` names it.

    Raises:
        InputError: no token is allowed at the place where it stands.
    """
    if _num_allowed(constraint) == 0:
        raise InputError(
            f"{what}: allows no token at all, not even the end of the sequence, expected at least one; "
            "check that some text fulfils it"
        )


def _num_allowed(constraint: TokenConstraint) -> int:
    mask = torch.empty(num_mask_words(constraint.vocab_size), dtype=torch.int32)
    constraint.fill_mask(mask)
    return int(unpack_mask(mask, constraint.vocab_size).sum())


def _describe_allowed(constraint: TokenConstraint) -> str:
    num_allowed = _num_allowed(constraint)
    if num_allowed == 0:
        return "no token of the vocabulary is allowed there"
    return f"{num_allowed} of the {constraint.vocab_size} tokens of the vocabulary are allowed there"
