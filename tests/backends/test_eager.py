from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import ClosedError, GraphError
from outrider.graphs import RunnerOptions
from outrider.interfaces import AttnPlan, GraphRunner
from outrider.types import (
    AttnBatch,
    Axis,
    BodyCalls,
    BufferSlot,
    GraphSizes,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    Role,
    TokenCount,
)
from outrider_backends.eager import EagerRunner, create
from tests.support.planners import FixedPlanner, uniform_batch

SHAPE = PhaseShape(TokenCount(3), RequestCount(3))
BATCH = uniform_batch(3)


X = BufferSlot("x", Axis.TOKENS, (2,), torch.float32)


class Body:
    inputs: tuple[BufferSlot, ...] = (X,)
    outputs: tuple[BufferSlot, ...] = (X, evolve(X, name="y"))

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        x = buffers["x"]
        return {"x": x, "y": calls.attend(0, x, x, x)}


class RowsBody(Body):
    """Doubles rows; a number for each request, and one for all, beside them."""

    outputs = (
        BufferSlot("y", Axis.TOKENS, (2,), torch.float32),
        BufferSlot("z", Axis.TOKENS, (), torch.int64, leading=(3,)),
        BufferSlot("all", Axis.NONE, (1,), torch.float32),
    )

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        x = buffers["x"]
        return {"y": 2 * x, "z": torch.arange(x.shape[0]).expand(3, -1), "all": x.sum().view(1)}


def no_plan(batch: AttnBatch) -> AttnPlan:
    raise AssertionError("nothing is captured, so no plan is wanted")


def test_runs_the_body_on_the_inputs_themselves() -> None:
    runner: GraphRunner = EagerRunner()
    x = torch.randn(3, 2)
    planner = FixedPlanner()
    outputs = runner.run(Phase.TARGET_DECODE, Body(), {"x": x}, BATCH, planner)
    assert outputs["x"] is x
    assert torch.equal(outputs["y"], 2 * x)
    assert planner.planned == [BATCH]


def test_rows_wanted_are_picked_of_outputs_that_count_tokens() -> None:
    runner, x = EagerRunner(), torch.randn(6, 2)
    rows = torch.tensor([1, 5])
    outputs = runner.run(Phase.DRAFT_EXTEND, RowsBody(), {"x": x}, uniform_batch(2, 3), FixedPlanner(), rows)
    assert torch.equal(outputs["y"], 2 * x[rows])
    assert torch.equal(outputs["z"], rows.expand(3, -1))
    assert torch.equal(outputs["all"], x.sum().view(1))


def test_outside_is_run_at_once() -> None:
    def of_the_largest(x: Tensor, ids: Tensor) -> Tensor:
        return x[ids == ids.max()].sum() * x

    class Reading(Body):
        inputs = (X, BufferSlot("ids", Axis.TOKENS, (), torch.int64))
        outputs = (evolve(X, name="y"),)

        def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
            return {"y": calls.outside(of_the_largest, buffers["x"], buffers["ids"])}

    x, ids = torch.randn(3, 2), torch.tensor([1, 3, 3])
    outputs = EagerRunner().run(Phase.TARGET_DECODE, Reading(), {"x": x, "ids": ids}, BATCH, FixedPlanner())
    assert torch.equal(outputs["y"], x[1:].sum() * x)


def test_report_counts_what_ran_and_no_refusals() -> None:
    runner = EagerRunner()
    x = {"x": torch.zeros(3, 2)}
    assert runner.capture(Phase.DRAFT_STEP, Body(), [SHAPE], FixedPlanner(no_plan)) == ()
    answer = runner.admit(Phase.DRAFT_STEP, SHAPE)
    for _ in range(2):
        runner.run(Phase.DRAFT_STEP, Body(), x, BATCH, FixedPlanner())
    runner.run(Phase.TARGET_VERIFY, Body(), x, BATCH, FixedPlanner())
    assert answer == Refused(RefusalReason.NOT_CAPTURED, answer.numbers, answer.remedy)
    assert "3 tokens, 3 requests" in answer.numbers
    assert runner.report.runner == "eager"
    assert dict(runner.report.ran) == {(Phase.DRAFT_STEP, "eager"): 2, (Phase.TARGET_VERIFY, "eager"): 1}
    assert not runner.report.refused
    assert not runner.report.captured
    assert runner.sizes == GraphSizes()


def test_a_body_that_fails_is_not_counted() -> None:
    runner = EagerRunner()
    with pytest.raises(GraphError, match="'x' is declared but was not given"):
        runner.run(Phase.ROUND, Body(), {}, BATCH, FixedPlanner())
    assert not runner.report.ran


def test_made_whatever_is_asked_of_graphs() -> None:
    assert create(RunnerOptions(role=Role.DECODE)).sizes == GraphSizes()


def test_closed() -> None:
    runner = EagerRunner()
    runner.close()
    runner.close()
    with pytest.raises(ClosedError, match="cannot run target decode: the eager runner was closed"):
        runner.run(Phase.TARGET_DECODE, Body(), {"x": torch.zeros(1)}, BATCH, FixedPlanner())
    with pytest.raises(ClosedError, match="cannot capture"):
        runner.capture(Phase.TARGET_DECODE, Body(), [SHAPE], FixedPlanner(no_plan))
    assert runner.admit(Phase.TARGET_DECODE, SHAPE).reason is RefusalReason.CLOSED


def test_costs_next_to_nothing() -> None:
    class Empty(Body):
        outputs = ()

        def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
            return {}

    runner, body, planner, inputs = EagerRunner(), Empty(), FixedPlanner(), {"x": torch.zeros(3, 2)}

    def seconds(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            runner.run(Phase.ROUND, body, inputs, BATCH, planner)
        return (time.perf_counter() - start) / calls

    assert min(seconds(200) for _ in range(20)) < 10e-6  # measured 1.5 µs; a busy machine is slower
