"""Adaptive lengths: the policy finds the best length, and the text never depends on it."""

from __future__ import annotations

import pytest

from outrider import AdaptiveChainBuilder, EngineOptions, SpeculativeModel, registry
from outrider.drafting.length_policy import LengthPolicy
from outrider.errors import ConfigurationError
from outrider.interfaces import BoundDraft, Target
from outrider.types import RoundOutcome
from tests.cases_data import greedy_cases
from tests.support.pair import trained_pair


def run(policy: LengthPolicy, rates: tuple[float, ...], costs: tuple[float, ...], rounds: int) -> list[int]:
    """The lengths chosen when position i is accepted at ``rates[i]`` and a round of length n takes ``costs[n]``."""
    lengths: list[int] = []
    credit = [0.0] * len(rates)
    for _ in range(rounds):
        length = policy.length
        lengths.append(length)
        accepted = 0
        for position in range(length):
            # Error diffusion: accepted at exactly the given rate, without randomness.
            credit[position] += rates[position]
            if credit[position] < 1.0:
                break
            credit[position] -= 1.0
            accepted += 1
        policy.observe(RoundOutcome(length, (accepted,), costs[length]))
    return lengths


def best(rates: tuple[float, ...], costs: tuple[float, ...]) -> int:
    """The best length by definition."""
    speeds: list[float] = []
    for length, cost in enumerate(costs):
        tokens, reached = 1.0, 1.0
        for rate in rates[:length]:
            reached *= rate
            tokens += reached
        speeds.append(tokens / cost)
    return max(range(len(costs)), key=speeds.__getitem__)


@pytest.mark.parametrize(
    ("rates", "costs"),
    [
        ((0.9, 0.9, 0.9, 0.9), (1.0, 1.1, 1.2, 1.3, 1.4)),
        ((0.5, 0.2, 0.1, 0.1), (1.0, 1.2, 1.4, 1.6, 1.8)),
        ((0.1, 0.1, 0.1, 0.1), (1.0, 1.6, 2.2, 2.8, 3.4)),
        ((0.8, 0.7, 0.1, 0.1), (1.0, 1.2, 1.4, 1.6, 1.8)),
    ],
)
@pytest.mark.parametrize("given", [False, True], ids=["measured", "given"])
def test_the_policy_settles_on_the_length_that_is_fastest(
    rates: tuple[float, ...], costs: tuple[float, ...], given: bool
) -> None:
    policy = LengthPolicy(4, costs if given else None)
    lengths = run(policy, rates, costs, 400)[100:]
    assert lengths.count(best(rates, costs)) >= 0.8 * len(lengths)


def test_the_policy_follows_a_text_that_changes() -> None:
    costs = (1.0, 1.1, 1.2, 1.3, 1.4)
    policy = LengthPolicy(4)
    easy = run(policy, (0.95,) * 4, costs, 200)[-40:]
    hard = run(policy, (0.05,) * 4, costs, 300)[-40:]
    assert easy.count(4) > 30
    assert hard.count(0) > 30


def test_a_slow_round_now_and_then_changes_nothing() -> None:
    costs = (1.0, 1.1, 1.2, 1.3, 1.4)
    policy = LengthPolicy(4)
    run(policy, (0.9,) * 4, costs, 100)
    policy.observe(RoundOutcome(4, (4,), 50.0))
    policy.observe(RoundOutcome(4, (4,), None))
    assert policy.length == 4


def model(target: Target, draft: BoundDraft, costs: tuple[float, ...] | None, batch: int) -> SpeculativeModel:
    return SpeculativeModel(
        target,
        AdaptiveChainBuilder(draft, 4, costs=costs),
        attention=registry.attention("sdpa"),
        runner=lambda: registry.runner("eager"),
        options=EngineOptions(max_batch_size=batch),
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("costs", [None, (1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 9.0, 9.0, 9.0, 9.0)])
def test_the_text_does_not_depend_on_the_lengths(costs: tuple[float, ...] | None, batch: int) -> None:
    cases = greedy_cases()[:3]
    made = model(trained_pair().target, trained_pair().eagle3, costs, batch)
    result = made.generate_batch([case.prompt for case in cases], max_new_tokens=40)
    assert [each.token_ids for each in result.completions] == [case.token_ids[:40] for case in cases]
    longest = max(result.statistics.accept_lengths)
    # Drafts that cost nothing are long; drafts that cost nine rounds are given up after the first.
    if costs is not None:
        assert (longest == 5) if costs[1] == 1.0 else (sum(result.statistics.accept_lengths[5:]) < 150)


@pytest.mark.parametrize(
    ("length", "costs", "message"),
    [(0, None, "at least 1"), (2, (1.0,), "1 costs for lengths 0 to 2"), (1, (1.0, 0.0), "above 0")],
)
def test_sizes_that_cannot_be_are_refused(length: int, costs: tuple[float, ...] | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SpeculativeModel(
            trained_pair().target,
            AdaptiveChainBuilder(trained_pair().eagle3, length, costs=costs),
            attention=registry.attention("sdpa"),
            runner=lambda: registry.runner("eager"),
        )
