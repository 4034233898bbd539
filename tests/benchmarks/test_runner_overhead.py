"""The bare loop is the eager runner's, and noise is what two equal contestants differ by."""

from __future__ import annotations

import pytest

from benchmarks._race import Answer, Result
from benchmarks.runner_overhead import Overhead, overhead, overhead_table


def result(*seconds: float) -> Result:
    return Result("", 1, Answer(((1, 2),), num_passes=2), (seconds,))


def test_bare_and_eager_write_the_same_text() -> None:
    found = overhead("chain 5", 5, num_prompts=1, repeats=1)  # raises where a text is not the reference's
    assert found.bare.answer == found.eager.answer == found.bare_again.answer


def test_a_cost_above_noise_is_told() -> None:
    quiet = Overhead("quiet", result(1.0), result(1.05), result(1.01))
    noisy = Overhead("noisy", result(1.0), result(1.05), result(1.1))
    free = Overhead("free", result(1.0), result(1.009), result(1.0))
    assert [one.within_noise for one in (quiet, noisy, free)] == [False, True, True]
    assert noisy.ratio == pytest.approx(1.0)
    # The machine slows down in the second turn, and one turn is disturbed: neither counts.
    turns = Overhead("turns", result(1.0, 3.0, 1.0), result(1.03, 3.09, 9.0), result(1.0, 3.0, 1.0))
    assert (turns.noise, turns.within_noise) == (0.0, False)
    assert turns.ratio == pytest.approx(1.03)
    assert [row[-1] for row in overhead_table([quiet, noisy, free]).rows] == ["COSTS", "within noise", "within noise"]
