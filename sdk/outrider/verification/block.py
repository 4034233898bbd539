"""Block verification of chains: lossless in distribution, and never accepts fewer tokens than token by token.

Shape suffixes: B requests, N drafted tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from outrider.errors import ConfigurationError
from outrider.sampling.noise import NoiseStream, uniform_noise
from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState
from outrider.verification.distribution import at_node, draw_rest, target_distribution
from outrider.verification.walk import accept_up_to

__all__ = ["BlockVerifier"]


class BlockVerifier:
    """Accepts the longest prefix of a drafted chain that passes a test on the prefix as a whole.

    With P_0 = 1, P_i = min(1, P_{i-1} p(x_i) / q(x_i)) and R_i = sum_v max(P_i p(v | x_<=i) - q(v | x_<=i), 0), prefix i
    passes when U_i <= R_i / (R_i + 1 - P_i), the whole chain when U <= P. The longest prefix t that passes is kept,
    and the next token is drawn from norm(max(P_t p - q, 0)); after the whole chain, from p. Without
    `Proposal.distribution` q is one-hot. Greedy rows are exact, rows with shorter drafts have shorter chains.

    Source: Sun et al. 2024, Block Verification Accelerates Speculative Decoding, algorithm 2 (arXiv 2403.10444).
    """

    @property
    def guarantee(self) -> Literal["same distribution"]:
        """Tokens of the same joint distribution as plain decoding's."""
        return "same distribution"

    @property
    def chains_only(self) -> bool:
        """It is defined for chains."""
        return True

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted prefix for ``logits [B, N + 1, V]``, which are left unchanged.

        Raises:
            ConfigurationError: the proposal is a tree.
        """
        if not proposal.shape.is_chain:
            raise ConfigurationError(
                f"block verification was asked for, and the drafter proposes a tree of {proposal.shape.num_tokens} tokens"
                f" in {proposal.shape.depth} levels; it is defined for chains only: draft a chain, or verify trees with"
                " 'exact' or 'rejection'"
            )
        target = target_distribution(logits, state, proposal)
        p_BMV = target.scores.softmax(dim=-1)
        drafted = proposal.tokens.shape[1]
        if drafted == 0:
            nodes = torch.zeros_like(proposal.draft_lens)
            return accept_up_to(
                proposal, nodes, draw_rest(p_BMV[:, 0].log(), target.scores[:, 0], state), target.finite
            )
        tokens_BN = proposal.tokens.clamp(0, p_BMV.shape[2] - 1)
        q_BNV = _draft_probs(proposal, tokens_BN, p_BMV)
        draft_lens = proposal.draft_lens.clamp(max=drafted)
        kept_BM = _kept_mass(p_BMV, q_BNV, tokens_BN)
        rest_BNV = (kept_BM[:, :-1, None] * p_BMV[:, :-1] - q_BNV).clamp_min(0.0)
        pass_BN = _pass_probability(kept_BM, rest_BNV.sum(dim=-1), draft_lens)
        draws_BN = uniform_noise(state.sampling.seeds, state.lengths, NoiseStream.ACCEPT, drafted)
        lengths_N = torch.arange(1, drafted + 1, device=tokens_BN.device)
        nodes = torch.where(draws_BN < pass_BN, lengths_N, 0).amax(dim=1)
        whole_BV = at_node(p_BMV, nodes).log()
        rest_BV = at_node(rest_BNV, nodes.clamp(max=drafted - 1)).log()
        rest_BV = torch.where((nodes < draft_lens)[:, None], rest_BV, whole_BV)
        # The test of a prefix looks one node ahead, so every node that can be reached within the draft decides.
        reached_BM = (kept_BM > 0) & (proposal.depths <= draft_lens[:, None])
        finite_BM = (target.finite | ~reached_BM).all(dim=1, keepdim=True).expand_as(target.finite)
        return accept_up_to(proposal, nodes, draw_rest(rest_BV, whole_BV, state), finite_BM)


def _draft_probs(proposal: Proposal, tokens_BN: Tensor, p_BMV: Tensor) -> Tensor:
    if proposal.distribution is not None:
        return proposal.distribution.probs.to(p_BMV.dtype)
    return torch.zeros_like(p_BMV[:, 1:]).scatter_(2, tokens_BN[:, :, None], 1.0)


def _kept_mass(p_BMV: Tensor, q_BNV: Tensor, tokens_BN: Tensor) -> Tensor:
    """P_0..P_N ``[B, N + 1]``; stays 0 from the first token on that the target gives no probability."""
    p_BN = p_BMV[:, :-1].gather(2, tokens_BN[:, :, None]).squeeze(2)
    q_BN = q_BNV.gather(2, tokens_BN[:, :, None]).squeeze(2)
    kept = [torch.ones_like(p_BN[:, 0])]
    for i in range(p_BN.shape[1]):
        numerator = kept[-1] * p_BN[:, i]
        drawn = (numerator > 0) & (q_BN[:, i] > 0)
        kept.append(torch.where(drawn, (numerator / q_BN[:, i]).clamp(max=1.0), 0.0))
    return torch.stack(kept, dim=1)


def _pass_probability(kept_BM: Tensor, rest_BN: Tensor, draft_lens: Tensor) -> Tensor:
    """Probability ``[B, N]`` with which prefix 1..N passes: 0 past the draft length, P there, the block test before."""
    lengths_N = torch.arange(1, kept_BM.shape[1], device=kept_BM.device)
    kept_BN = kept_BM[:, 1:]
    # Column i of ``rest_BN`` is R_i: the last prefix has none and doesn't need one.
    rest_BN = torch.cat([rest_BN[:, 1:], torch.ones_like(rest_BN[:, :1])], dim=1)
    slack_BN = rest_BN + 1 - kept_BN
    # Nothing left and nothing lost: p and q agree from here on, so the prefix is as good as any longer one.
    block_BN = torch.where(slack_BN > 0, rest_BN / slack_BN, kept_BN)
    test_BN = torch.where(lengths_N == draft_lens[:, None], kept_BN, block_BN)
    return torch.where(lengths_N <= draft_lens[:, None], test_BN, 0.0)
