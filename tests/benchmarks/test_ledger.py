"""Every moment is charged once, to the innermost part; timers change no token."""

from __future__ import annotations

import pytest

from benchmarks._cases import chain_lengths, greedy_cases
from benchmarks._ledger import Ledger, Part
from benchmarks.profile_round import SHAPES, profile


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_inner_part_is_taken_out_of_the_outer_one() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    clock.now += 7  # nobody's
    with ledger.within(Part.HOST):
        clock.now += 1
        with ledger.within(Part.TARGET_LAYERS):
            clock.now += 10
            with ledger.within(Part.TARGET_ATTENTION):
                clock.now += 4
            clock.now += 10
        ledger.turn_to(Part.COMMIT)
        clock.now += 2
    clock.now += 7
    charged = {part: seconds for part, seconds in ledger.seconds.items() if seconds}
    assert charged == {Part.HOST: 1, Part.TARGET_LAYERS: 20, Part.TARGET_ATTENTION: 4, Part.COMMIT: 2}
    assert ledger.total == 27
    assert ledger.forward_share == 24 / 27


def test_a_part_that_fails_ends() -> None:
    clock = Clock()
    ledger = Ledger(clock)

    def fail() -> None:
        with ledger.within(Part.HOST):
            clock.now += 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.now += 5
    with ledger.within(Part.ACCEPT):
        clock.now += 3
    assert (ledger.seconds[Part.HOST], ledger.seconds[Part.ACCEPT]) == (1, 3)


def test_turning_outside_of_any_part_charges_nobody() -> None:
    ledger = Ledger(Clock())
    ledger.turn_to(Part.COMMIT)
    assert ledger.total == 0
    assert ledger.forward_share == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_profile_charges_every_part_of_real_rounds(shape: str) -> None:
    cases = greedy_cases()[:1]
    found = profile(shape, cases, repeats=1)
    assert all(seconds > 0 for seconds in found.ledger.seconds.values())
    if shape == "chain 5":
        # Timed drafting accepts what it accepts without timers.
        assert found.rounds == len(chain_lengths("eagle3-chain5")[0])
    shares = [row[3] for row in found.table().rows[: len(Part)]]
    assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=1)
