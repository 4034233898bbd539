"""Contestants take turns, medians are per group, and a wrong text stops everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import evolve

from benchmarks._cases import Case, TokenIds
from benchmarks._race import Answer, Contestant, Result, WrongTextError, agreement, race

CASES = tuple(Case((index,), (index, index + 1, index + 2)) for index in range(4))


class Clock:
    """A clock that only moves when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def worker(
    name: str, clock: Clock, log: list[str], cost: Callable[[TokenIds, int], float], *, wrong_at: int | None = None
) -> Contestant:
    """Continues prompt (p,) by p, p+1, p+2; its n-th call for a group takes ``cost(first prompt, n)`` seconds."""
    calls: dict[TokenIds, int] = {}

    def generate(prompts: Sequence[TokenIds]) -> Answer:
        number = calls[prompts[0]] = calls.get(prompts[0], -1) + 1
        log.append(f"{name}{prompts[0][0]}")
        clock.now += cost(prompts[0], number)
        ids = tuple((p, p + 1, 99 if p == wrong_at else p + 2) for (p,) in prompts)
        return Answer(ids, num_passes=2, accept_lengths=(2,) * len(prompts))

    return Contestant(name, generate)


def test_turns_are_taken_group_by_group_after_everybody_warmed_up() -> None:
    clock, log = Clock(), list[str]()
    field = [worker(name, clock, log, lambda prompt, number: 1.0) for name in "AB"]
    race(field, CASES, 2, repeats=2, clock=clock)
    assert log == ["A0", "A2", "B0", "B2", *["A0", "B0", "A2", "B2"] * 2]


def test_warming_up_ends_when_an_answer_prepares_nothing_and_at_the_latest_after_four() -> None:
    clock, log, told = Clock(), list[str](), list[str]()

    def preparing(name: str, times: int) -> Contestant:
        one = worker(name, clock, log, lambda prompt, number: 1.0)
        # Two groups an answer; each of the first ``times`` answers prepares something.
        return evolve(one, preparations=lambda: min(log.count(f"{name}0"), times))

    race(
        [preparing(name, times) for name, times in (("A", 0), ("B", 2), ("C", 9))],
        CASES,
        2,
        1,
        clock=clock,
        tell=told.append,
    )
    assert [log.count(f"{name}2") - 1 for name in "ABC"] == [1, 3, 4]
    assert told == ["A: 1 warm-up, 2.0 s", "B: 3 warm-ups, 6.0 s", "C: 4 warm-ups, 8.0 s", "repetition 1 of 1: 6.0 s"]


def test_a_slow_repetition_of_one_group_does_not_count() -> None:
    clock = Clock()
    # Call 0 warms up; of the timed calls 1..3 one is disturbed, another one for each group.
    slow = worker("slow", clock, [], lambda prompt, number: 50.0 if number == 1 + prompt[0] % 3 else 2.0)
    fast = worker("fast", clock, [], lambda prompt, number: 1.0)
    disturbed, steady = race([slow, fast], CASES, 1, repeats=3, clock=clock)
    assert disturbed.total_seconds == 4 * 2.0
    assert steady.tokens_per_second == 12 / 4.0
    assert steady.tokens_per_second / disturbed.tokens_per_second == 2.0
    assert steady.ms_per_pass == 1e3 * 4.0 / 8
    # Repetitions of the disturbed one take 2 * 50 + 2 * 2, 50 + 3 * 2 and 50 + 3 * 2 seconds.
    assert (steady.spread, disturbed.spread) == (0.0, (104 - 56) / 2 / 56)


def test_all_wrong_texts_are_named_before_anything_is_timed() -> None:
    clock, log = Clock(), list[str]()
    faults = {"A": 1, "B": None, "C": 3}
    field = [worker(name, clock, log, lambda prompt, number: 1.0, wrong_at=at) for name, at in faults.items()]
    with pytest.raises(WrongTextError) as caught:
        race(field, CASES, 1, repeats=1, clock=clock)
    assert "A: prompt 1 differs from the reference at generated token 2" in str(caught.value)
    assert "C: prompt 3" in str(caught.value)
    assert "B:" not in str(caught.value)
    assert len(log) == 3 * len(CASES)
    assert len(race(field, CASES, 1, repeats=1, check=False, clock=clock)) == 3


def test_acceptance_length_is_per_round_and_without_rounds_per_pass() -> None:
    answer = Answer(((1,) * 9,), num_passes=5, accept_lengths=(3, 1, 2, 2))
    assert Result("", 1, answer, ((1.0,),)).acceptance_length == 2.0
    # Nine tokens, one of them by prefill, in four further passes.
    assert Result("", 1, Answer(answer.token_ids, 5), ((1.0,),)).acceptance_length == 2.0
    # Two prompts that share their passes.
    both = Answer(answer.token_ids * 2, 5)
    assert Result("", 2, both, ((1.0,),)).acceptance_length == 2.0


def test_agreement_counts_places_and_what_is_missing() -> None:
    answer = Answer(((1, 2, 3, 4), (5, 6)), num_passes=0)
    assert agreement(answer, ((1, 2, 3, 4), (5, 6))) == 1.0
    assert agreement(answer, ((1, 2, 9, 4), (5, 6, 7, 8))) == 5 / 8
    assert agreement(Answer((), 0), ()) == 1.0
