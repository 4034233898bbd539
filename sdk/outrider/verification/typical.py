"""Typical acceptance: more tokens for each pass, at the price of a changed distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.errors import ConfigurationError, Problems
from outrider.sampling.choice import perturb
from outrider.sampling.paths import NodePaths
from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState
from outrider.verification.distribution import at_node, target_distribution
from outrider.verification.walk import accept_up_to, drafted_in_length

__all__ = ["TypicalVerifier"]


class TypicalVerifier:
    """Accepts every drafted token that the target finds typical: p(x) > min(epsilon, delta · exp(-H(p))).

    p is the target's warped distribution at the token's parent and H its entropy. Of the longest paths whose tokens
    all pass, the most probable is taken; the token after it is chosen as plain decoding with the row's seed would. A
    token with p(x) = 0 never passes. Greedy rows (H = 0) accept the best token alone and stay exact.

    Args:
        epsilon: the probability that is enough whatever the entropy, 0 < epsilon < 1.
        delta: how far below exp(-H) a token may fall, 0 < delta <= 1.

    Raises:
        ConfigurationError: a parameter is out of its range.

    Source: Cai et al. 2024, Medusa, section 2.3.1 (arXiv 2401.10774).
    """

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        with Problems("typical acceptance cannot be set up as asked", ConfigurationError) as problems:
            if not 0 < epsilon < 1:
                problems.add(f"epsilon is {epsilon}; it is a probability, 0 < epsilon < 1: the usual value is 0.09")
            if not 0 < delta <= 1:
                problems.add(f"delta is {delta}; it is a factor, 0 < delta <= 1: the usual value is 0.3")
        self._epsilon = epsilon
        self._delta = delta

    @property
    def loss(self) -> str:
        """What may differ from plain decoding."""
        return (
            "sampled rows take any drafted token that is probable enough, so their distribution is not the target's and"
            " leans towards the draft; greedy rows are the target's own"
        )

    @property
    def chains_only(self) -> bool:
        """It verifies trees as well."""
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted path for ``logits [B, N + 1, V]``, which are left unchanged."""
        target = target_distribution(logits, state, proposal)
        p_BMV = target.scores.softmax(dim=-1)
        enough_BM = (p_BMV.xlogy(p_BMV).sum(dim=-1).exp() * self._delta).clamp(max=self._epsilon)
        tokens_BN = proposal.tokens.clamp(0, p_BMV.shape[2] - 1)
        rows_B1 = torch.arange(tokens_BN.shape[0], device=tokens_BN.device)[:, None]
        p_BN = p_BMV[rows_B1, proposal.parents, tokens_BN]
        passes_BN = (p_BN > enough_BM.gather(1, proposal.parents)) & drafted_in_length(proposal)
        nodes = _best_node(proposal, passes_BN, p_BN)
        paths = NodePaths(
            depths=proposal.depths.gather(1, nodes[:, None]),
            tokens=proposal.tokens[:, :0],
            on_path=proposal.ancestors[:, :1, :0],
            num_levels=proposal.shape.depth + 1,
        )
        chosen_B1V = perturb(at_node(target.scores, nodes)[:, None], state, paths)
        return accept_up_to(proposal, nodes, chosen_B1V.argmax(dim=-1).squeeze(1), target.finite)


def _best_node(proposal: Proposal, passes_BN: Tensor, p_BN: Tensor) -> Tensor:
    """The deepest node ``[B]`` whose whole path passes; among equally deep ones, that of the most probable path."""
    passes_BM = torch.cat([passes_BN.new_ones(passes_BN.shape[0], 1), passes_BN], dim=1)
    accepted_BM = (passes_BM[:, None, :] | ~proposal.ancestors).all(dim=2)
    depths_BM = torch.where(accepted_BM, proposal.depths, -1)
    longest_BM = depths_BM == depths_BM.amax(dim=1, keepdim=True)
    # Off the accepted paths p may be 0 or NaN; those terms must not reach a sum.
    log_p_BN = torch.where(passes_BN, p_BN, 1.0).to(torch.float64).log()
    log_path_BM = (proposal.ancestors[:, :, 1:].to(torch.float64) * log_p_BN[:, None]).sum(dim=2)
    return torch.where(longest_BM, log_path_BM, -math.inf).argmax(dim=1)
