"""The walk down a proposal that follows the target's own choice at every node.

Shape suffixes: B requests, N drafted tokens, M = N + 1 nodes (node 0 is the root), K = depth of the proposal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types import Acceptance, Proposal

__all__ = ["accept_up_to", "drafted_in_length", "follow_choices"]


def follow_choices(proposal: Proposal, choice_BM: Tensor, finite_BM: Tensor) -> Acceptance:
    """The path on which every drafted token equals the target's choice at its parent; the next choice is the bonus.

    ``choice_BM [B, M]`` int64: the token the target takes after each node. ``finite_BM [B, M]`` bool: whether the logits
    of that node were finite. Siblings hold distinct tokens, so at most one path agrees. Device only, static shapes,
    capture-safe.
    """
    if proposal.shape.is_chain:
        return _follow_chain(proposal, choice_BM, finite_BM)
    batch, drafted = proposal.tokens.shape
    depth = proposal.shape.depth
    agrees_BN = choice_BM.gather(1, proposal.parents) == proposal.tokens
    agrees_BN &= drafted_in_length(proposal)
    # A node is accepted when all its ancestors and itself agree: to stand on its path implies (<=) to agree.
    accepted_BN = (proposal.ancestors[:, 1:, 1:] <= agrees_BN[:, None, :]).all(dim=2)
    counts = accepted_BN.sum(dim=1)
    # Column of each node in the path: its depth where accepted, else the extra column that is cut off.
    column_BN = proposal.depths[:, 1:].masked_fill(~accepted_BN, depth + 1)
    nodes_BN = torch.arange(1, drafted + 1, device=choice_BM.device).expand(batch, -1)
    path = nodes_BN.new_zeros(batch, depth + 2).scatter_(1, column_BN, nodes_BN)[:, : depth + 1]
    return Acceptance(
        path=path,
        counts=counts,
        tokens=choice_BM.gather(1, path),
        finite=_finite_on_path(finite_BM.gather(1, path), proposal, counts),
    )


def accept_up_to(proposal: Proposal, nodes_B: Tensor, bonus_B: Tensor, finite_BM: Tensor) -> Acceptance:
    """The path from the root to ``nodes_B [B]`` int64 accepted, followed by ``bonus_B [B]`` int64.

    ``finite_BM [B, M]`` bool: whether the logits of each node were finite. Device only, static shapes, capture-safe.
    """
    batch, drafted = proposal.tokens.shape
    depth = proposal.shape.depth
    rows_B11 = nodes_B[:, None, None]
    on_path_BM = proposal.ancestors.gather(1, rows_B11.expand(-1, 1, drafted + 1)).squeeze(1)
    counts = proposal.depths.gather(1, nodes_B[:, None]).squeeze(1)
    column_BM = torch.where(on_path_BM, proposal.depths, depth + 1)
    nodes_BM = torch.arange(drafted + 1, device=nodes_B.device).expand(batch, -1)
    path = nodes_BM.new_zeros(batch, depth + 2).scatter_(1, column_BM, nodes_BM)[:, : depth + 1]
    if drafted == 0:
        tokens = bonus_B[:, None]
    else:
        # Column j emits the node in column j + 1 of the path; the last column can only be a bonus.
        emitted = proposal.tokens.gather(1, (path[:, 1:] - 1).clamp_min(0))
        tokens = torch.cat([emitted, bonus_B[:, None]], dim=1).scatter(1, counts[:, None], bonus_B[:, None])
    return Acceptance(path, counts, tokens, _finite_on_path(finite_BM.gather(1, path), proposal, counts))


def drafted_in_length(proposal: Proposal) -> Tensor:
    """Which drafted nodes ``[B, N]`` bool are no padding: those not deeper than their row's draft length."""
    return proposal.depths[:, 1:] <= proposal.draft_lens[:, None]


def _follow_chain(proposal: Proposal, choice_BM: Tensor, finite_BM: Tensor) -> Acceptance:
    """The same for a chain: the path is the proposal itself, so only its accepted length is to be found."""
    drafted = proposal.shape.num_tokens
    if drafted == 0:
        return Acceptance(proposal.depths, proposal.depths[:, 0], choice_BM, finite_BM[:, 0])
    # A token on which the target disagrees leaves as many as stand before it: the depth of its parent.
    agrees_BN = choice_BM[:, :-1] == proposal.tokens
    counts = torch.where(agrees_BN, proposal.draft_lens[:, None], proposal.depths[:, :-1]).amin(dim=1)
    counts.clamp_(max=drafted)
    finite = _finite_on_path(finite_BM, proposal, counts)
    return Acceptance(path=proposal.depths, counts=counts, tokens=choice_BM, finite=finite)


def _finite_on_path(finite_BK: Tensor, proposal: Proposal, counts: Tensor) -> Tensor:
    """Whether the first ``counts + 1`` columns are true; the depths of a chain are the columns' numbers."""
    columns = finite_BK.shape[1]
    column = proposal.depths if proposal.shape.is_chain else torch.arange(columns, device=counts.device)
    return (finite_BK | (column > counts[:, None])).all(dim=1)
