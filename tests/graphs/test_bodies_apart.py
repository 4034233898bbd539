"""What one body cannot do is no matter of another; sizes are told in the units they have."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve, frozen

from outrider.errors import CaptureError
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.types import Admitted, AttnCapabilities, Phase, PhaseShape, RefusalReason, Refused
from outrider.types.counts import counted
from outrider_backends.tape import TapeMedium
from tests.support.bodies import Body, read
from tests.support.planners import FixedPlanner, uniform_batch

PHASE = Phase.TARGET_VERIFY
ALL = [Steps(), Steps(phases=False)]


def ladder(steps: Steps, on_demand: bool = True) -> LadderRunner:
    options = GraphOptions(request_buckets([1, 4]), token_buckets([2, 8]), on_demand=on_demand, poison=True)
    return LadderRunner("test", (TapeMedium(debug=True),), steps, options)


def run(runner: LadderRunner, body: Body, count: int = 2) -> None:
    x = torch.ones(count, 2)
    found = runner.run(PHASE, body, {"x": x}, uniform_batch(count), FixedPlanner())["x"]
    assert torch.equal(found, x * -4 if body.extra is torch.neg else read(x * 4))


@pytest.mark.parametrize("steps", ALL, ids=["phase", "breakable"])
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_body_that_cannot_be_captured_leaves_others_of_its_phase_alone(steps: Steps, bad_first: bool) -> None:
    runner, bad, good = ladder(steps), Body(read), Body()
    for body in (bad, good) if bad_first else (good, bad):
        for _ in range(2):
            run(runner, body)
    kind = "phase" if steps.phases else "breakable"
    assert runner.report.ran == {(PHASE, kind): 2, (PHASE, "eager"): 2}
    assert {reason for _, reason in runner.report.refused} == {RefusalReason.BODY}
    calls = bad.calls
    run(runner, bad)
    assert bad.calls == calls + 1, "it is not tried again"
    run(runner, bad, count=1)
    assert bad.calls == calls + 2, "nor at another size"


@pytest.mark.parametrize("steps", ALL, ids=["phase", "breakable"])
def test_admission_refuses_a_phase_only_while_none_of_its_bodies_could_be_captured(steps: Steps) -> None:
    runner, shape = ladder(steps), PhaseShape.of(uniform_batch(2))
    assert isinstance(runner.admit(PHASE, shape), Admitted)
    run(runner, Body(read))
    answer = runner.admit(PHASE, shape)
    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.BODY
    assert isinstance(runner.admit(Phase.TARGET_DECODE, shape), Admitted)
    run(runner, Body())
    assert isinstance(runner.admit(PHASE, shape), Admitted)


@pytest.mark.parametrize("steps", ALL, ids=["phase", "breakable"])
def test_a_body_that_could_not_be_captured_when_asked_is_refused_for_that(steps: Steps) -> None:
    runner, body = ladder(steps, on_demand=False), Body(read)
    with pytest.raises(CaptureError):
        runner.capture(PHASE, body, [PhaseShape.of(uniform_batch(2))], FixedPlanner())
    run(runner, body)
    assert {reason for _, reason in runner.report.refused} == {
        RefusalReason.BODY,
        *((RefusalReason.NOT_CAPTURED,) if steps.phases else ()),
    }


@frozen(eq=False)
class AnyLength(FixedPlanner):
    """A plan for long sequences serves short ones as well."""

    @property
    def capabilities(self) -> AttnCapabilities:
        return evolve(super().capabilities, any_length=True)


def test_what_was_captured_for_any_length_serves_any_length() -> None:
    runner, body, planner = ladder(Steps(), on_demand=False), Body(), AnyLength()
    short, long = (uniform_batch(2, max_length=length, pages=200) for length in (20, 700))
    [size] = runner.capture(PHASE, body, [PhaseShape.of(short)], planner)
    assert size.attention is not None
    assert size.attention.max_length >= 200 * planner.page_size
    for batch in (short, long):
        runner.run(PHASE, body, {"x": torch.ones(2, 2)}, batch, planner)
    assert runner.report.ran == {(PHASE, "phase"): 2}


def test_counts_are_told_with_their_noun() -> None:
    assert [counted(count, "request") for count in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]
    assert [counted(count, "query", "queries") for count in (1, 3)] == ["1 query", "3 queries"]
    assert str(PhaseShape.of(uniform_batch(1))) == "1 token, 1 request of 1 query, up to 64 positions"
    assert str(PhaseShape.of(uniform_batch(3, 2))) == "6 tokens, 3 requests of 2 queries, up to 64 positions"
    assert str(PhaseShape.of(evolve(uniform_batch(1, 2), host_prefix_lens=(0,)))) == "2 tokens, 1 request"
