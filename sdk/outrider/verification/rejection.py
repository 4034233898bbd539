"""Rejection sampling over trees of one-hot or sampled drafts: lossless in distribution.

Shape suffixes: B requests, N drafted tokens, M = N + 1 nodes (node 0 is the root), V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from outrider.sampling.noise import NoiseStream, uniform_noise
from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState
from outrider.verification.distribution import at_node, draw_rest, target_distribution
from outrider.verification.walk import accept_up_to, drafted_in_length

__all__ = ["RejectionVerifier"]


class RejectionVerifier:
    """Accepts drafted tokens at random so that the output has exactly the target's distribution.

    From the root, the children of the current node are tried in the order in which they stand in the proposal, p being
    the target's warped distribution there:

    - one-hot (`Proposal.distribution` is ``None``): child x is accepted with p(x); else p(x) becomes 0 and p is
      normalised. Holds for any way of drafting that doesn't look at the noise of this verifier.
    - sampled: child x, drawn from q without replacement, is accepted with min(1, p(x) / q(x)); else p becomes
      norm(max(p - q, 0)), q(x) becomes 0 and q is normalised. ``probs`` must be what the tokens *were* drawn from,
      whether or not it was `DraftDistribution.warped`, and which children the proposal keeps must not depend on which
      tokens were drawn: a tree that is pruned by its tokens' scores is to be declared one-hot.

    When no child is accepted the next token is drawn from what is left of p. A token with p(x) = 0 is never accepted;
    where nothing is left of p (p and q agree but for rounding) p itself is drawn from. Greedy rows are exact. The same
    seed gives the same tokens again in any batch, but not those of plain sampling.

    A parent stands before its children, so one pass over the nodes in their order walks the tree.

    Source: Leviathan et al. 2023 (arXiv 2211.17192); multi-candidate: SpecInfer (arXiv 2305.09781), EAGLE
    (arXiv 2401.15077), without replacement: Jeon et al. 2024 (arXiv 2402.14160).
    """

    @property
    def guarantee(self) -> Literal["same distribution"]:
        """Tokens of the same joint distribution as plain decoding's."""
        return "same distribution"

    @property
    def chains_only(self) -> bool:
        """It verifies trees as well."""
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted path for ``logits [B, N + 1, V]``, which are left unchanged."""
        target = target_distribution(logits, state, proposal)
        drafted = proposal.tokens.shape[1]
        draws_BN = uniform_noise(state.sampling.seeds, state.lengths, NoiseStream.ACCEPT, drafted)
        if proposal.distribution is None:
            nodes, rest_BV = _try_one_hot(proposal, target.scores, draws_BN)
        else:
            nodes, rest_BV = _try_sampled(proposal, target.scores, proposal.distribution.probs, draws_BN)
        bonus = draw_rest(rest_BV, at_node(target.scores, nodes), state)
        return accept_up_to(proposal, nodes, bonus, target.finite)


def _try_one_hot(proposal: Proposal, scores_BMV: Tensor, draws_BN: Tensor) -> tuple[Tensor, Tensor]:
    """The last accepted node ``[B]``, and the scores ``[B, V]`` there with the children that were rejected at -inf.

    Only p at the drafted tokens matters on the way, so the walk itself is over numbers, not over the vocabulary.
    """
    batch, drafted = proposal.tokens.shape
    tokens_BN = proposal.tokens.clamp(0, scores_BMV.shape[2] - 1)
    usable_BN = drafted_in_length(proposal)
    log_total_BM = scores_BMV.logsumexp(dim=-1)
    rows_B1 = torch.arange(batch, device=tokens_BN.device)[:, None]
    log_p_BN = scores_BMV[rows_B1, proposal.parents, tokens_BN] - log_total_BM.gather(1, proposal.parents)
    p_BN = log_p_BN.to(torch.float64).exp()
    # A sibling's token that comes again has been taken out of p.
    same_BNN = (tokens_BN[:, :, None] == tokens_BN[:, None]) & (
        proposal.parents[:, :, None] == proposal.parents[:, None]
    )
    p_BN = p_BN.masked_fill(same_BNN.tril(-1).any(dim=2), 0.0)
    node_B = torch.zeros_like(proposal.draft_lens)
    left_B = p_BN.new_ones(batch)
    for i in range(drafted):
        tried = usable_BN[:, i] & (proposal.parents[:, i] == node_B)
        accepted = tried & (draws_BN[:, i] * left_B < p_BN[:, i])
        left_B = torch.where(accepted, 1.0, (left_B - torch.where(tried, p_BN[:, i], 0.0)).clamp_min(0.0))
        node_B = torch.where(accepted, i + 1, node_B)
    rejected_BN = usable_BN & (proposal.parents == node_B[:, None])
    # Adding 0 or -inf gives the same result in any order where nodes elsewhere in the tree hold the same token.
    taken_out_BN = torch.where(rejected_BN, -math.inf, 0.0)
    return node_B, at_node(scores_BMV, node_B).scatter_add(1, tokens_BN, taken_out_BN)


def _try_sampled(proposal: Proposal, scores_BMV: Tensor, probs_BNV: Tensor, draws_BN: Tensor) -> tuple[Tensor, Tensor]:
    """The last accepted node ``[B]``, and the log ``[B, V]`` of what is left of p there."""
    drafted = proposal.tokens.shape[1]
    tokens_BN = proposal.tokens.clamp(0, scores_BMV.shape[2] - 1)
    usable_BN = drafted_in_length(proposal)
    node_B = torch.zeros_like(proposal.draft_lens)
    p_BV = scores_BMV[:, 0].softmax(dim=-1)
    q_BV = torch.zeros_like(p_BV)
    first_B = torch.ones_like(node_B, dtype=torch.bool)
    for i in range(drafted):
        tried = usable_BN[:, i] & (proposal.parents[:, i] == node_B)
        q_BV = torch.where((tried & first_B)[:, None], probs_BNV[:, i].to(torch.float32), q_BV)
        first_B = first_B & ~tried
        token_B1 = tokens_BN[:, i : i + 1]
        p_B, q_B = p_BV.gather(1, token_B1).squeeze(1), q_BV.gather(1, token_B1).squeeze(1)
        # q(x) = 0 is no draw: it fills the place of a child where q had fewer tokens than children were asked for.
        accepted = tried & (q_B > 0) & (draws_BN[:, i] * q_B < p_B)
        rejected = tried & ~accepted
        rest_BV = (p_BV - q_BV).clamp_min(0.0)
        total_B1 = rest_BV.sum(dim=-1, keepdim=True)
        rest_BV = torch.where(total_B1 > 0, rest_BV / total_B1, p_BV)
        p_BV = torch.where(rejected[:, None], rest_BV, p_BV)
        p_BV = torch.where(accepted[:, None], scores_BMV[:, i + 1].softmax(dim=-1), p_BV)
        without_BV = q_BV.scatter(1, token_B1, 0.0)
        without_BV = without_BV / without_BV.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        q_BV = torch.where(rejected[:, None], without_BV, q_BV)
        node_B = torch.where(accepted, i + 1, node_B)
        first_B = first_B | accepted
    return node_B, p_BV.log()
