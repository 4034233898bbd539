"""What graphs of phases serve, what they refuse and why, and what is done with bodies that cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider import registry
from outrider.errors import CaptureError, ClosedError, ConformanceError, GraphError
from outrider.graphs import GraphOptions, LadderRunner, RunnerOptions, Steps, request_buckets
from outrider.interfaces import AttnPlan, GraphBody, GraphRunner
from outrider.types import (
    Admitted,
    AttnBatch,
    Axis,
    BufferSlot,
    CaptureSupport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
)
from outrider_backends.tape import TapeMedium, create, tape_runner
from tests.support import bodies
from tests.support.bodies import Body, X, read
from tests.support.planners import Doubling, FixedPlanner, uniform_batch

PHASE = Phase.TARGET_VERIFY


def phases(
    buckets: Sequence[int] | None = None,
    *,
    on_demand: bool = True,
    poison: bool = False,
    medium: TapeMedium | None = None,
) -> LadderRunner:
    """A runner that captures phases with their attention, and nothing else."""
    requests = None if buckets is None else request_buckets(buckets)
    options = GraphOptions(requests=requests, on_demand=on_demand, poison=poison)
    return tape_runner(options, Steps(rounds=False, breakable=False), medium)


def out_of_memory(x: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("no memory left on the device")


def run(runner: GraphRunner, body: GraphBody, batch: AttnBatch, planner: FixedPlanner | None = None) -> Tensor:
    x = torch.randn(batch.num_tokens, 2)
    planner = FixedPlanner() if planner is None else planner
    found = runner.run(PHASE, body, {"x": x}, batch, planner)["x"]
    # A body that was made for failing gives something else.
    if isinstance(body, Body) and body.extra is torch.neg:
        assert torch.equal(found, -4 * x)
    return found


def refused(runner: GraphRunner, batch: AttnBatch, reason: RefusalReason) -> Refused:
    answer = runner.admit(PHASE, PhaseShape.of(batch))
    assert isinstance(answer, Refused)
    assert answer.reason is reason
    assert answer.numbers
    assert answer.remedy
    return answer


def admitted(runner: GraphRunner, batch: AttnBatch) -> Admitted:
    answer = runner.admit(PHASE, PhaseShape.of(batch))
    assert isinstance(answer, Admitted), answer
    return answer


def test_a_call_is_padded_to_whole_requests_and_a_length() -> None:
    runner = phases([1, 4])
    answer = admitted(runner, uniform_batch(3, 5, max_length=65, pages=40))
    assert (answer.key.tokens, answer.key.requests, answer.padding) == (20, 4, 5)
    assert answer.key.attention is not None
    assert answer.key.attention.max_length == 128
    assert admitted(runner, uniform_batch(1, 5)).padding == 0


def test_a_graph_is_captured_once_and_replayed() -> None:
    runner, body, planner = phases([2, 4]), Body(), FixedPlanner()
    for requests in (3, 4, 3, 2, 1, 4):
        run(runner, body, uniform_batch(requests, 2), planner)
    assert body.calls == 6, "warm-up and two recordings for each of two buckets"
    assert [len(batch.query_lens) for batch in planner.planned] == [4, 2]
    assert runner.report.ran == {(PHASE, "phase"): 6}
    assert not runner.report.refused


def test_sizes_that_differ_in_more_than_rows_are_graphs_of_their_own() -> None:
    runner, body, planner = phases([2]), Body(), FixedPlanner()
    tree = evolve(
        uniform_batch(2, 2),
        tail_mask=torch.ones(2, 2, 3, dtype=torch.bool),
        query_depths=torch.zeros(2, 2, dtype=torch.int64),
        tail_depths=torch.zeros(2, 3, dtype=torch.int64),
    )
    for batch in (uniform_batch(2, 2), uniform_batch(2, 3), tree, uniform_batch(2, 2, max_length=129)):
        run(runner, body, batch, planner)
    assert len({PhaseShape.of(batch) for batch in planner.planned}) == 4
    with_another = Body()
    run(runner, with_another, uniform_batch(2, 2), planner)
    assert with_another.calls == 3, "another body is another graph"


def test_prompts_and_ragged_batches_run_directly_and_are_counted() -> None:
    runner, body = phases(), Body()
    ragged = evolve(uniform_batch(3), query_lens=(2, 1, 0))
    prompt = evolve(uniform_batch(2, 3), host_prefix_lens=(0, 0))
    for batch in (ragged, prompt):
        run(runner, body, batch)
        refused(runner, batch, RefusalReason.NOT_UNIFORM)
    assert runner.report.ran == {(PHASE, "eager"): 2}
    assert runner.report.refused == {(PHASE, RefusalReason.NOT_UNIFORM): 2}
    explained = runner.report.explained[PHASE, "phase", RefusalReason.NOT_UNIFORM]
    assert "6 tokens, 2 requests" in explained.numbers


def test_more_requests_than_the_largest_bucket_run_directly() -> None:
    runner = phases([1, 2])
    run(runner, Body(), uniform_batch(3))
    answer = refused(runner, uniform_batch(3), RefusalReason.TOO_LARGE)
    assert answer.numbers == "3 requests, the largest bucket holds 2"
    assert runner.report.refused == {(PHASE, RefusalReason.TOO_LARGE): 1}


def test_a_backend_that_declares_no_capture_is_not_captured() -> None:
    runner, body = phases(), Body()
    planner = FixedPlanner(capture=CaptureSupport.NONE)
    for _ in range(2):
        run(runner, body, uniform_batch(2), planner)
    assert body.calls == 2
    assert "'fixed'" in refused(runner, uniform_batch(2), RefusalReason.ATTENTION).numbers
    assert runner.report.refused == {(PHASE, RefusalReason.ATTENTION): 2}


def test_a_body_that_cannot_be_captured_is_named_and_runs_directly() -> None:
    runner, body = phases(), Body(read)
    x = torch.ones(2, 2)
    found = runner.run(PHASE, body, {"x": x}, uniform_batch(2), FixedPlanner())["x"]
    assert torch.equal(found, torch.full((2, 2), 64.0))
    answer = refused(runner, uniform_batch(1), RefusalReason.BODY)
    assert f"{bodies.__file__}:" in answer.numbers
    assert "reads a value on the host" in answer.numbers
    calls = body.calls
    run(runner, body, uniform_batch(2))
    assert body.calls == calls + 1, "it is not tried again"
    assert runner.report.refused == {(PHASE, RefusalReason.BODY): 2}


def test_an_explicit_capture_raises() -> None:
    runner = phases()
    with pytest.raises(CaptureError, match=r"target verify at 2 tokens, 2 requests of .* cannot be captured"):
        runner.capture(PHASE, Body(read), [PhaseShape.of(uniform_batch(2))], FixedPlanner())


def test_out_of_memory_in_a_capture_leaves_the_other_sizes() -> None:
    runner, body, planner = phases([1, 4]), Body(), FixedPlanner()
    run(runner, body, uniform_batch(1), planner)

    def fails_when_large(x: Tensor) -> Tensor:
        return out_of_memory(x) if x.shape[0] == 4 else -x

    body.extra = fails_when_large
    shapes = [PhaseShape.of(uniform_batch(count)) for count in (4, 1)]
    assert [shape.requests for shape in runner.capture(PHASE, body, shapes, planner)] == [1]
    assert "no memory left" in refused(runner, uniform_batch(3), RefusalReason.MEMORY).numbers
    body.extra = torch.neg
    run(runner, body, uniform_batch(3), planner)
    run(runner, body, uniform_batch(1), planner)
    assert runner.report.ran == {(PHASE, "phase"): 2, (PHASE, "eager"): 1}
    assert runner.report.refused == {(PHASE, RefusalReason.MEMORY): 2}


def test_without_capture_on_demand_only_what_was_captured_is_served() -> None:
    runner, body, planner = phases([1, 2, 4, 8], on_demand=False), Body(), FixedPlanner()
    run(runner, body, uniform_batch(2), planner)
    assert "0 graphs of the phase" in refused(runner, uniform_batch(2), RefusalReason.NOT_CAPTURED).numbers
    shapes = [PhaseShape.of(uniform_batch(count, max_length=length)) for count, length in ((8, 64), (4, 64), (4, 200))]
    captured = runner.capture(PHASE, body, [*shapes, shapes[0]], planner)
    assert [(key.requests, key.attention and key.attention.max_length) for key in captured] == [
        (8, 128),
        (4, 128),
        (4, 256),
    ]
    answer = admitted(runner, uniform_batch(1, max_length=30))
    assert (answer.key, answer.padding) == (captured[1], 3)
    assert admitted(runner, uniform_batch(3, max_length=130)).key == captured[2]
    refused(runner, uniform_batch(5, max_length=130), RefusalReason.NOT_CAPTURED)
    refused(runner, uniform_batch(2, 2), RefusalReason.NOT_CAPTURED)
    run(runner, body, uniform_batch(1), planner)
    assert runner.report.ran == {(PHASE, "eager"): 1, (PHASE, "phase"): 1}


def test_without_capture_on_demand_another_body_or_planner_is_not_captured_either() -> None:
    """What is admitted follows from shapes; that a graph is another's shows when it is run, and is counted."""
    runner, body, planner = phases([2], on_demand=False), Body(), FixedPlanner()
    runner.capture(PHASE, body, [PhaseShape.of(uniform_batch(2))], planner)
    for other_body, other_planner in ((Body(), planner), (body, FixedPlanner())):
        run(runner, other_body, uniform_batch(2), other_planner)
    assert runner.report.ran == {(PHASE, "eager"): 2}
    assert runner.report.refused == {(PHASE, RefusalReason.NOT_CAPTURED): 2}
    run(runner, body, uniform_batch(2), planner)
    assert runner.report.ran == {(PHASE, "eager"): 2, (PHASE, "phase"): 1}


def test_admission_is_the_same_for_every_rank() -> None:
    """Two runners that captured the same answer alike, whatever they ran in between."""
    one, two = (phases([2, 8]) for _ in range(2))
    shapes = [PhaseShape.of(uniform_batch(count, queries)) for count in (1, 2, 5, 9) for queries in (1, 3)]
    run(one, Body(), uniform_batch(5, 3))
    run(one, Body(), evolve(uniform_batch(2), query_lens=(2, 0)))
    assert [one.admit(PHASE, shape) for shape in shapes] == [two.admit(PHASE, shape) for shape in shapes]


def test_inputs_that_are_not_what_the_body_declares() -> None:
    with pytest.raises(GraphError, match="'y' was given, declared are x"):
        phases().run(PHASE, Body(), {"x": torch.zeros(2, 2), "y": torch.zeros(2)}, uniform_batch(2), FixedPlanner())


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ((), "'x' is returned and not declared"),
        ((X, evolve(X, name="z")), "'z' is declared and not returned; returned are x"),
        ((evolve(X, trailing=(3,)),), r"'x' is \[2, 2\] torch.float32, declared is \[2, 3\]"),
        ((evolve(X, axis=Axis.NONE),), r"declared is \[2\]"),
        ((evolve(X, dtype=torch.float64),), "declared is .* torch.float64"),
    ],
)
def test_outputs_that_are_not_what_the_body_declares(outputs: tuple[BufferSlot, ...], says: str) -> None:
    with pytest.raises(ConformanceError, match=says):
        phases().run(PHASE, Body(outputs=outputs), {"x": torch.zeros(2, 2)}, uniform_batch(2), FixedPlanner())


def test_padding_rows_are_poisoned_where_the_pool_says_so() -> None:
    seen: list[Tensor] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(x)
        return x + 0

    runner = phases([4], poison=True, medium=TapeMedium(debug=True))
    found = run(runner, Body(watch), uniform_batch(2))
    assert not found.isnan().any()
    assert seen[-1][2:].isnan().all()


class Leaky(Doubling):
    """Attention that mixes a request with its neighbours, padding included."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q + q.sum(dim=0)


def test_a_body_that_reads_padding_rows_is_found() -> None:
    def leaky(batch: AttnBatch) -> AttnPlan:
        return Leaky()

    runner = phases([4], poison=True, medium=TapeMedium(debug=True))
    found = runner.run(PHASE, Body(), {"x": torch.ones(2, 2)}, uniform_batch(2), FixedPlanner(leaky))["x"]
    assert found.isnan().all()


def test_the_least_recently_used_graph_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.graphs.phases._CAPACITY", 2)
    runner, body, planner = phases([1, 2, 4], on_demand=False), Body(), FixedPlanner()
    shapes = [PhaseShape.of(uniform_batch(count)) for count in (1, 2)]
    runner.capture(PHASE, body, shapes, planner)
    kept = run(runner, body, uniform_batch(2), planner)
    copied = kept.clone()
    run(runner, body, uniform_batch(1), planner)
    runner.capture(PHASE, body, [PhaseShape.of(uniform_batch(4))], planner)
    assert torch.equal(kept, copied), "what it gave is memory of its own"
    assert admitted(runner, uniform_batch(1)).key.requests == 1
    assert admitted(runner, uniform_batch(2)).key.requests == 4
    run(runner, body, uniform_batch(2), planner)


def test_closed() -> None:
    runner: GraphRunner = phases()
    run(runner, Body(), uniform_batch(2))
    runner.close()
    runner.close()
    refused(runner, uniform_batch(2), RefusalReason.CLOSED)
    with pytest.raises(ClosedError, match="cannot run target verify: the tape runner was closed"):
        run(runner, Body(), uniform_batch(2))
    with pytest.raises(ClosedError, match="cannot capture"):
        runner.capture(PHASE, Body(), [], FixedPlanner())
    assert runner.report.ran == {(PHASE, "phase"): 1}


@pytest.mark.parametrize("name", ["tape", "cuda-graph", "breakable"])
def test_installed_under_its_name(name: str) -> None:
    assert registry.runner(name).report.runner == name


def test_made_as_it_is_asked_of_factories() -> None:
    runner = create(RunnerOptions(capture_requests=request_buckets([2, 5])))
    assert runner.sizes.requests == (2, 5)
    admitted(runner, uniform_batch(2))
    refused(create(RunnerOptions(on_demand=False)), uniform_batch(2), RefusalReason.NOT_CAPTURED)
