from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve

from outrider.errors import ConfigurationError
from outrider.types import SamplingParams
from outrider.verification import ExactVerifier, TypicalVerifier
from tests.sampling.toys import ints, path_tokens
from tests.verification.greedy import GreedyVerifier
from tests.verification.test_invariants import case


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.5, 1.0), (0.01, 0.05)])
def test_the_longest_typical_path_is_taken_and_of_equals_the_most_probable(epsilon: float, delta: float) -> None:
    """Against every path of every tree, walked one by one."""
    for seed in range(6):
        proposal, logits, state = case(seed, "tree", sampled=False)
        plain = evolve(
            state,
            sampling=evolve(
                state.sampling,
                temperature=torch.full_like(state.sampling.temperature, 0.7),
                features=evolve(state.sampling.features, top_k=False, top_p=False, min_p=False, penalties=False),
            ),
        )
        assert plain.sampling.bias is not None
        plain = evolve(plain, sampling=evolve(plain.sampling, bias=None, top_k=torch.zeros_like(state.sampling.top_k)))
        plain = evolve(
            plain, sampling=evolve(plain.sampling, features=evolve(plain.sampling.features, min_tokens=False))
        )
        accepted = TypicalVerifier(epsilon, delta).accept(proposal, logits, plain)
        p = (logits.double() / 0.7).softmax(-1)
        for row in range(p.shape[0]):
            best = (0, 0.0, 0)
            for node in range(1, 8):
                way: list[int] = []
                current = node
                while current > 0:
                    way.append(current)
                    current = int(proposal.parents[row, current - 1])
                log_p, fits = 0.0, len(way) <= int(proposal.draft_lens[row])
                for step in way:
                    here = p[row, int(proposal.parents[row, step - 1])]
                    chance = float(here[proposal.tokens[row, step - 1]])
                    entropy = -float((here * here.log()).sum())
                    fits &= chance > min(epsilon, delta * math.exp(-entropy))
                    log_p += math.log(chance)
                if fits and (len(way), log_p) > best[:2]:
                    best = (len(way), log_p, node)
            count = int(accepted.counts[row])
            assert count == best[0]
            assert ints(accepted.tokens[row, :count]) == path_tokens(proposal, row, best[2])


def test_the_token_after_the_path_is_that_of_plain_decoding() -> None:
    proposal, logits, state = case(1, "tree", sampled=False)
    nothing = evolve(proposal, draft_lens=torch.zeros_like(proposal.draft_lens))
    ours, plain = (v.accept(nothing, logits, state) for v in (TypicalVerifier(), ExactVerifier()))
    assert torch.equal(ours.tokens[:, 0], plain.tokens[:, 0])


def test_greedy_rows_stay_exact() -> None:
    for seed in range(10):
        proposal, logits, state = case(seed, "tree", sampled=False)
        features = evolve(state.sampling.features, penalties=False, bias=False, min_tokens=False)
        cold = evolve(
            state,
            sampling=evolve(
                state.sampling, temperature=torch.zeros_like(state.sampling.temperature), features=features
            ),
        )
        ours, greedy = (v.accept(proposal, logits, cold) for v in (TypicalVerifier(), GreedyVerifier()))
        assert torch.equal(ours.counts, greedy.counts)
        for row in range(len(ours.counts)):
            count = int(ours.counts[row])
            assert torch.equal(ours.tokens[row, : count + 1], greedy.tokens[row, : count + 1])


def test_parameters_out_of_range_are_all_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)2 problems.*epsilon is 1\.5.*delta is 0"):
        TypicalVerifier(epsilon=1.5, delta=0)
    assert "distribution is not the target's" in TypicalVerifier().loss
    assert SamplingParams().greedy
