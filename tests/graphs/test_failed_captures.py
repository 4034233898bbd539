"""Captures that fail cost their call one step, and nothing that comes later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import pytest
import torch
from attrs import define, evolve
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs import Steps
from outrider.types import BodyCalls, BufferSlot, Phase, PhaseShape, RefusalReason
from tests.graphs.ladders import PHASE, PROMPT, RAGGED, expected_of, explained, ladder, run, scaled
from tests.support.bodies import Body, OutsideBody, X, positive
from tests.support.media import FailingMedium
from tests.support.planners import FixedPlanner, uniform_batch

When = Literal["before", "at a break", "after"]
WHEN: tuple[When, ...] = ("before", "at a break", "after")


def nth(number: int, make: Callable[[], BaseException]) -> Callable[[int], BaseException | None]:
    return lambda asked: make() if asked == number else None


def no_memory() -> BaseException:
    return torch.OutOfMemoryError("no memory left on the device")


@pytest.mark.parametrize("when", WHEN)
def test_out_of_memory_in_the_middle_of_a_capture(when: When) -> None:
    """Counted, the call served a step down or directly, other sizes captured as if nothing had been."""
    medium = FailingMedium(nth(1, no_memory), when)
    runner, body, planner = ladder(medium), OutsideBody(positive, scaled), FixedPlanner()
    for count in (3, 3, 1, 4):
        x = torch.randn(count, 2)
        assert torch.equal(run(runner, body, uniform_batch(count), planner, x=x), expected_of(x))
    assert runner.report.ran == {(PHASE, "breakable"): 3, (PHASE, "phase"): 1}
    assert explained(runner) == {"phase": RefusalReason.MEMORY}
    assert runner.report.refused == {(PHASE, RefusalReason.MEMORY): 3}
    said = runner.report.explained[PHASE, "phase", RefusalReason.MEMORY]
    assert said.numbers.startswith("target verify at 4 tokens")
    assert said.numbers.endswith("no memory left on the device")
    assert [record.size for record in runner.report.captured][:1] == ["6 tokens"], "what failed is not written down"
    assert len(runner.report.captured) == 2


@pytest.mark.parametrize("when", WHEN)
def test_out_of_memory_in_segments(when: When) -> None:
    medium = FailingMedium(nth(1, no_memory), when)
    runner, body = ladder(medium), Body()
    for batch in (RAGGED, RAGGED, PROMPT, evolve(uniform_batch(2), host_prefix_lens=(0, 0))):
        run(runner, body, batch)
    assert runner.report.ran == {(PHASE, "eager"): 3, (PHASE, "breakable"): 1}
    assert explained(runner)["breakable"] is RefusalReason.MEMORY
    assert runner.report.refused[PHASE, RefusalReason.MEMORY] == 3


def test_out_of_memory_before_anything_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers and plans are memory, too."""

    def none_left(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("no memory left for buffers")

    runner, body = ladder(), Body()
    run(runner, body, uniform_batch(1))
    with monkeypatch.context() as patch:
        patch.setattr("outrider.graphs.buffers.torch.empty", none_left)
        run(runner, body, uniform_batch(3))
    assert runner.report.ran == {(PHASE, "phase"): 1, (PHASE, "eager"): 1}
    assert explained(runner) == {"phase": RefusalReason.MEMORY, "breakable": RefusalReason.MEMORY}
    run(runner, body, uniform_batch(1))
    run(runner, body, evolve(uniform_batch(7), host_prefix_lens=(0,) * 7))
    assert runner.report.ran == {(PHASE, "phase"): 2, (PHASE, "eager"): 1, (PHASE, "breakable"): 1}


@pytest.mark.parametrize("steps", [Steps(), Steps(phases=False)], ids=["phase", "breakable"])
@pytest.mark.parametrize("when", WHEN)
def test_an_interrupt_in_the_middle_of_a_capture(steps: Steps, when: When) -> None:
    medium = FailingMedium(nth(1, KeyboardInterrupt), when)
    runner, body = ladder(medium, steps=steps), OutsideBody(positive, scaled)
    with pytest.raises(KeyboardInterrupt):
        run(runner, body, uniform_batch(3))
    for _ in range(2):
        x = torch.randn(3, 2)
        assert torch.equal(run(runner, body, uniform_batch(3), x=x), expected_of(x))
    assert runner.report.ran == {(PHASE, "phase" if steps.phases else "breakable"): 2}, "it is tried again"
    assert not runner.report.refused


def test_a_body_that_raises_raises() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError("the body is wrong")

    runner = ladder()
    for batch in (uniform_batch(2), RAGGED):
        with pytest.raises(ZeroDivisionError, match="the body is wrong"):
            run(runner, Body(broken), batch)
    run(runner, Body(), uniform_batch(2))
    run(runner, Body(), RAGGED)


@define
class Forgetful:
    """Hands something to be run outside, but not when its Python is run for the first time."""

    inputs: tuple[BufferSlot, ...] = (X,)
    outputs: tuple[BufferSlot, ...] = (X,)
    calls: int = 0

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        self.calls += 1
        x = buffers["x"]
        return {"x": x * 2 if self.calls == 1 else calls.outside(positive, x)}


@pytest.mark.parametrize("steps", [Steps(), Steps(phases=False)], ids=["phase", "breakable"])
def test_what_crosses_a_break_must_have_crossed_it_in_the_warm_up(steps: Steps) -> None:
    runner = ladder(steps=steps)
    with pytest.raises(CaptureError, match="crosses a break in the capture and did not in the run before it"):
        runner.capture(PHASE, Forgetful(), [PhaseShape.of(uniform_batch(2))], FixedPlanner())
    x = torch.randn(2, 2)
    assert torch.equal(run(runner, Forgetful(calls=5), uniform_batch(2), x=x), positive(x))
    run(runner, Body(), uniform_batch(2), phase=Phase.TARGET_DECODE)
    assert (Phase.TARGET_DECODE, "eager") not in runner.report.ran, "another phase is as it was"
