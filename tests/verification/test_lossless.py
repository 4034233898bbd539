"""The output of every lossless verifier has the target's joint distribution: chi-square over 125 continuations.

200k rows, 50k for each of four settings in one batch (three sampled ones and a greedy one), and a draft that lacks one
of five tokens. The same test with a verifier that is slightly wrong must fail: that is its power.
"""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import Verifier
from outrider.sampling import gumbel_noise
from outrider.types import Acceptance, DecodeState, DraftDistribution, Proposal
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier, TypicalVerifier
from outrider.verification.distribution import at_node, target_distribution
from tests.verification.markov import BUSH, CHAIN, NOTHING, Topology, draft, generate, p_values, rows, target_logits

CASES = [
    (ExactVerifier(), BUSH, False),
    (RejectionVerifier(), CHAIN, False),
    (RejectionVerifier(), CHAIN, True),
    (RejectionVerifier(), BUSH, False),
    (RejectionVerifier(), BUSH, True),
    (RejectionVerifier(), NOTHING, False),
    (BlockVerifier(), CHAIN, True),
    (BlockVerifier(), CHAIN, False),
]


def name(value: object) -> str:
    if isinstance(value, Topology):
        return {CHAIN: "chain", BUSH: "tree", NOTHING: "nothing"}[value]
    return str(value) if isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize(("verifier", "topology", "sampled"), CASES, ids=name)
def test_three_tokens_have_the_targets_joint_distribution(
    verifier: Verifier, topology: Topology, sampled: bool
) -> None:
    found = p_values(generate(verifier, rows(), topology, sampled=sampled))
    assert min(found) > 1e-3, found


@pytest.mark.parametrize(
    ("verifier", "topology"),
    [(RejectionVerifier(), BUSH), (BlockVerifier(), CHAIN)],
    ids=name,
)
def test_rows_with_draft_lengths_of_their_own_keep_the_distribution(verifier: Verifier, topology: Topology) -> None:
    state = rows()
    lens = torch.arange(state.num_rows) // 4 % (topology.shape.depth + 1)
    found = p_values(generate(verifier, state, topology, sampled=True, draft_lens=lens))
    assert min(found) > 1e-3, found


class BonusFromWhole:
    """Wrong: after a rejection it draws from the whole of p instead of from what is left."""

    def __init__(self, inner: Verifier) -> None:
        self._inner = inner

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        accepted = self._inner.accept(proposal, logits, state)
        nodes = accepted.path.gather(1, accepted.counts[:, None]).squeeze(1)
        scores = at_node(target_distribution(logits, state, proposal).scores, nodes)
        bonus = (scores + gumbel_noise(state.sampling.seeds + 10**9, state.lengths, scores.shape[1])).argmax(-1)
        return evolve(accepted, tokens=accepted.tokens.scatter(1, accepted.counts[:, None], bonus[:, None]))


class SharedBonus:
    """Wrong: one draw of the token after the accepted ones for all rows."""

    def __init__(self, inner: Verifier) -> None:
        self._inner = inner

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        one_seed = evolve(state.sampling, seeds=torch.zeros_like(state.sampling.seeds))
        accepted = self._inner.accept(proposal, logits, state)
        shared = self._inner.accept(proposal, logits, evolve(state, sampling=one_seed))
        same = (shared.counts == accepted.counts)[:, None]
        return evolve(accepted, tokens=torch.where(same, shared.tokens, accepted.tokens))


class DraftIdsForTargetIds:
    """Wrong: q stays on draft ids instead of being scattered to the target's."""

    def __init__(self, inner: Verifier) -> None:
        self._inner = inner

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        assert proposal.distribution is not None
        probs = proposal.distribution.probs[..., [4, 1, 0, 3, 2]]
        return self._inner.accept(evolve(proposal, distribution=DraftDistribution(probs, warped=True)), logits, state)


class OtherTemperature:
    """Wrong: q is not quite what the tokens were drawn from."""

    def __init__(self, inner: Verifier) -> None:
        self._inner = inner

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        assert proposal.distribution is not None
        probs = proposal.distribution.probs**0.8
        probs = probs / probs.sum(-1, keepdim=True)
        return self._inner.accept(evolve(proposal, distribution=DraftDistribution(probs, warped=False)), logits, state)


@pytest.mark.parametrize(
    ("verifier", "topology", "sampled"),
    [
        (BonusFromWhole(RejectionVerifier()), CHAIN, True),
        (BonusFromWhole(RejectionVerifier()), BUSH, False),
        (BonusFromWhole(BlockVerifier()), CHAIN, True),
        (SharedBonus(RejectionVerifier()), BUSH, True),
        (DraftIdsForTargetIds(RejectionVerifier()), CHAIN, True),
        (OtherTemperature(RejectionVerifier()), BUSH, True),
        (TypicalVerifier(), CHAIN, False),
    ],
    ids=name,
)
def test_the_check_fails_for_a_wrong_verifier(verifier: Verifier, topology: Topology, sampled: bool) -> None:
    found = p_values(generate(verifier, rows(), topology, sampled=sampled, num_tokens=2))
    assert min(found) < 1e-6, found


def test_block_verification_accepts_no_less_than_rejection() -> None:
    state = rows()
    lens = torch.full_like(state.lengths, 3)
    proposal = draft(state, CHAIN, lens, sampled=True)
    logits = target_logits(state, proposal)
    sampled = state.sampling.temperature > 0
    block, token = (v.accept(proposal, logits, state).counts[sampled] for v in (BlockVerifier(), RejectionVerifier()))
    gain = (block - token).double()
    assert float(gain.mean()) > 4 * float(gain.std()) / len(gain) ** 0.5
