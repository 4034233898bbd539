"""The ladder: what one kind of graph does not serve goes one step down, each refusal counted and explained, values right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from attrs import define, evolve
from torch import Tensor

from outrider.errors import CaptureError, ClosedError, ConfigurationError, ConformanceError, GraphError
from outrider.graphs import Steps
from outrider.types import (
    Admitted,
    AttnBatch,
    Axis,
    BodyCalls,
    BufferSlot,
    CaptureHiddenMode,
    CaptureSupport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    TokenCount,
)
from outrider_backends.cuda_graph import CudaGraphMedium, cuda_graph_runner
from outrider_backends.tape import TapeMedium
from tests.graphs.ladders import PHASE, PROMPT, RAGGED, explained, ladder, one_round, round_shape, run
from tests.support.bodies import Body, X, read
from tests.support.media import NoGraphs
from tests.support.planners import FixedPlanner, uniform_batch

# -- one step after the other ------------------------------------------------------------------------------------------


def test_what_is_uniform_is_served_with_its_attention_and_what_is_not_in_segments() -> None:
    runner, body = ladder(), Body()
    for batch in (uniform_batch(3), RAGGED, PROMPT, uniform_batch(4, 2)):
        run(runner, body, batch)
    assert runner.report.ran == {(PHASE, "phase"): 2, (PHASE, "breakable"): 2}
    assert runner.report.refused == {(PHASE, RefusalReason.NOT_UNIFORM): 2}
    assert explained(runner) == {"phase": RefusalReason.NOT_UNIFORM}


def test_what_is_too_large_for_one_step_is_served_by_the_next() -> None:
    runner, body = ladder(requests=(1, 2), tokens=(4, 6)), Body()
    run(runner, body, uniform_batch(3, 2))
    assert runner.report.ran == {(PHASE, "breakable"): 1}
    assert explained(runner) == {"phase": RefusalReason.TOO_LARGE}
    run(runner, body, uniform_batch(7))
    assert runner.report.ran == {(PHASE, "breakable"): 1, (PHASE, "eager"): 1}
    assert explained(runner) == {"phase": RefusalReason.TOO_LARGE, "breakable": RefusalReason.TOO_LARGE}
    assert runner.report.refused == {(PHASE, RefusalReason.TOO_LARGE): 3}


def test_a_body_that_cannot_be_captured_falls_through_every_step() -> None:
    runner, body, x = ladder(), Body(read), torch.ones(2, 2)
    for _ in range(2):
        assert torch.equal(run(runner, body, uniform_batch(2), x=x), torch.full((2, 2), 64.0))
    assert runner.report.ran == {(PHASE, "eager"): 2}
    assert explained(runner) == {"phase": RefusalReason.BODY, "breakable": RefusalReason.BODY}
    for refusal in runner.report.explained.values():
        assert "bodies.py:" in refusal.numbers
        assert "reads a value on the host" in refusal.numbers
    assert not runner.report.captured
    answer = runner.admit(PHASE, PhaseShape.of(uniform_batch(2)))
    assert isinstance(answer, Refused)
    assert (answer.by, answer.reason) == ("breakable", RefusalReason.BODY)


@pytest.mark.parametrize("steps", [Steps(), Steps(phases=False)], ids=["phase", "breakable"])
def test_asked_to_capture_what_cannot_be_it_says_so(steps: Steps) -> None:
    runner = ladder(steps=steps)
    with pytest.raises(
        CaptureError, match=r"target verify at \d tokens.*cannot be captured.*reads a value on the host"
    ):
        runner.capture(PHASE, Body(read), [PhaseShape.of(uniform_batch(2))], FixedPlanner())
    run(runner, Body(), uniform_batch(2))


def test_attention_that_cannot_be_captured_is_run_between_segments() -> None:
    runner, body, planner = ladder(), Body(), FixedPlanner(capture=CaptureSupport.NONE)
    for _ in range(2):
        run(runner, body, uniform_batch(3), planner)
    assert runner.report.ran == {(PHASE, "breakable"): 2}
    assert explained(runner) == {"phase": RefusalReason.ATTENTION}
    assert "'fixed'" in runner.report.explained[PHASE, "phase", RefusalReason.ATTENTION].numbers


LENGTHS = BufferSlot("lengths", Axis.REQUESTS, (), torch.float32)


@define
class PerRequest:
    """Adds a number of its request to each row: rows of one request are consecutive and equally many."""

    inputs: tuple[BufferSlot, ...] = (X, LENGTHS)
    outputs: tuple[BufferSlot, ...] = (X,)

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        x, lengths = buffers["x"], buffers["lengths"]
        each = x.shape[0] // lengths.shape[0]
        return {"x": x + lengths[:, None].expand(-1, each).reshape(-1, 1)}


def test_inputs_that_count_requests_are_no_matter_for_segments() -> None:
    runner, body = ladder(requests=(1, 2)), PerRequest()
    for requests, kind in ((2, "phase"), (1, "phase"), (3, "eager")):
        x, lengths = torch.randn(2 * requests, 2), torch.randn(requests)
        inputs = {"x": x, "lengths": lengths}
        found = runner.run(PHASE, body, inputs, uniform_batch(requests, 2), FixedPlanner())["x"]
        assert torch.equal(found, x + lengths.repeat_interleave(2)[:, None])
        assert runner.report.ran[PHASE, kind] > 0
    assert explained(runner) == {"phase": RefusalReason.TOO_LARGE, "breakable": RefusalReason.BODY}
    said = runner.report.explained[PHASE, "breakable", RefusalReason.BODY]
    assert "inputs lengths of target verify count requests" in said.numbers


def test_a_device_without_graphs() -> None:
    runner, body = ladder(NoGraphs()), Body()
    for batch in (uniform_batch(2), RAGGED, uniform_batch(2)):
        run(runner, body, batch)
    assert runner.report.ran == {(PHASE, "eager"): 3}
    assert runner.report.explained[PHASE, "phase", RefusalReason.DEVICE].numbers == (
        "the model is on cpu; none: cpu has no graphs"
    )
    assert runner.report.refused == {(PHASE, RefusalReason.DEVICE): 5, (PHASE, RefusalReason.NOT_UNIFORM): 1}
    assert runner.capture(PHASE, body, [PhaseShape.of(uniform_batch(2))], FixedPlanner()) == ()
    assert body.calls == 3, "nothing was tried"


def test_the_first_medium_that_takes_the_device_serves_it() -> None:
    runner = ladder(CudaGraphMedium(), NoGraphs(), TapeMedium(debug=True))
    run(runner, Body(), uniform_batch(2))
    run(runner, Body(), RAGGED)
    assert runner.report.ran == {(PHASE, "phase"): 1, (PHASE, "breakable"): 1}


def test_cuda_graphs_of_a_model_on_a_cpu() -> None:
    runner = cuda_graph_runner(medium=CudaGraphMedium())
    run(runner, Body(), uniform_batch(2))
    assert runner.report.ran == {(PHASE, "eager"): 1}
    assert explained(runner) == {"phase": RefusalReason.DEVICE, "breakable": RefusalReason.DEVICE}
    said = runner.report.explained[PHASE, "phase", RefusalReason.DEVICE]
    assert said.numbers == "the model is on cpu; cuda graph: cpu is no CUDA device"


def test_no_step_at_all() -> None:
    runner = ladder(steps=Steps(phases=False, breakable=False))
    run(runner, Body(), uniform_batch(2))
    assert runner.report.ran == {(PHASE, "eager"): 1}
    answer = runner.admit(PHASE, PhaseShape.of(uniform_batch(2)))
    assert isinstance(answer, Refused)
    assert "only whole rounds are captured" in answer.numbers


# -- what is captured --------------------------------------------------------------------------------------------------


def test_capturing_goes_down_the_ladder_as_well() -> None:
    runner, body = ladder(on_demand=False), Body()
    shapes = [PhaseShape.of(batch) for batch in (uniform_batch(3), RAGGED, uniform_batch(9), uniform_batch(99))]
    captured = runner.capture(PHASE, body, shapes, FixedPlanner())
    assert [(shape.tokens, shape.requests, shape.attention is None) for shape in captured] == [
        (4, 4, False),
        (6, 1, True),
        (16, 1, True),
    ]
    assert [record.by for record in runner.report.captured] == ["phase", "breakable", "breakable"]
    assert runner.report.refused[PHASE, RefusalReason.TOO_LARGE] == 3
    planner = FixedPlanner()
    run(runner, body, RAGGED, planner)
    assert runner.report.ran == {(PHASE, "breakable"): 1}, "segments are of no planner"
    run(runner, body, uniform_batch(3), planner)
    assert runner.report.ran == {(PHASE, "breakable"): 2}, "with its attention it was captured for another planner"


def test_not_captured_and_not_on_demand() -> None:
    runner, body = ladder(on_demand=False), Body()
    run(runner, body, uniform_batch(2))
    assert explained(runner) == {"phase": RefusalReason.NOT_CAPTURED, "breakable": RefusalReason.NOT_CAPTURED}
    said = runner.report.explained[PHASE, "breakable", RefusalReason.NOT_CAPTURED]
    assert said.numbers == "target verify of 2 tokens; captured are none"
    runner.capture(PHASE, body, [PhaseShape.of(RAGGED)], FixedPlanner())
    answer = runner.admit(PHASE, PhaseShape.of(uniform_batch(2)))
    assert isinstance(answer, Admitted)
    assert (answer.key.tokens, answer.padding) == (6, 4)
    refusal = runner.admit(Phase.TARGET_PREFILL, PhaseShape.of(PROMPT))
    assert isinstance(refusal, Refused)
    assert refusal.reason is RefusalReason.NOT_CAPTURED


def test_admission_is_the_same_for_every_rank() -> None:
    one, two = ladder(), ladder()
    shapes = [
        PhaseShape.of(batch, mode)
        for batch in (*(uniform_batch(count, queries) for count in (1, 4, 5, 17) for queries in (1, 3)), RAGGED, PROMPT)
        for mode in (CaptureHiddenMode.LAST, CaptureHiddenMode.FULL)
    ]
    for batch in (uniform_batch(2), RAGGED, uniform_batch(17), PROMPT):
        run(one, Body(), batch)
    for phase in (PHASE, Phase.DRAFT_EXTEND, Phase.TARGET_PREFILL):
        assert [one.admit(phase, shape) for shape in shapes] == [two.admit(phase, shape) for shape in shapes]


@pytest.mark.parametrize("bad", [[], [4, 2], [2, 2], [0, 1], [1 << 30]])
def test_buckets_that_make_no_sense(bad: list[int]) -> None:
    with pytest.raises(ConfigurationError):
        ladder(requests=bad)
    with pytest.raises(ConfigurationError):
        ladder(tokens=bad)


# -- what is wrong with a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [uniform_batch(6), RAGGED], ids=["phase", "breakable"])
@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ((), "'x' is returned and not declared"),
        ((X, evolve(X, name="z")), "'z' is declared and not returned; returned are x"),
        ((evolve(X, trailing=(3,)),), r"'x' is \[\d, 2\] torch.float32, declared is \[\d, 3\]"),
        ((evolve(X, dtype=torch.float64),), "declared is .* torch.float64"),
    ],
)
def test_outputs_that_are_not_what_the_body_declares(
    outputs: tuple[BufferSlot, ...], says: str, batch: AttnBatch
) -> None:
    with pytest.raises(ConformanceError, match=says):
        run(ladder(requests=(6,)), Body(outputs=outputs), batch)


@pytest.mark.parametrize("batch", [uniform_batch(6), RAGGED], ids=["phase", "breakable"])
def test_inputs_that_are_not_what_the_body_declares(batch: AttnBatch) -> None:
    runner = ladder(requests=(6,))
    inputs = {"x": torch.zeros(6, 2), "y": torch.zeros(2)}
    with pytest.raises(GraphError, match="'y' was given, declared are x"):
        runner.run(PHASE, Body(), inputs, batch, FixedPlanner())


def test_closed() -> None:
    runner, body = ladder(), Body()
    run(runner, body, uniform_batch(2))
    run(runner, body, RAGGED)
    runner.close()
    runner.close()
    with pytest.raises(ClosedError, match="cannot run target verify: the test runner was closed; build a new one"):
        run(runner, body, uniform_batch(2))
    with pytest.raises(ClosedError, match="cannot run a round"):
        runner.run_round(round_shape(), one_round)
    with pytest.raises(ClosedError, match="cannot capture target verify"):
        runner.capture(PHASE, body, [], FixedPlanner())
    answer = runner.admit(PHASE, PhaseShape.of(uniform_batch(2)))
    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.CLOSED
    assert runner.report.ran == {(PHASE, "phase"): 1, (PHASE, "breakable"): 1}, "the report stays"


def test_what_a_graph_took_is_written_down() -> None:
    runner, body = ladder(), Body()
    run(runner, body, uniform_batch(3, 2))
    run(runner, body, RAGGED)
    run(runner, body, uniform_batch(4, 2))
    assert [(record.phase, record.by, record.size) for record in runner.report.captured] == [
        (PHASE, "phase", "8 tokens, 4 requests of 2 queries, up to 128 positions"),
        (PHASE, "breakable", "6 tokens"),
    ]
    assert all(record.seconds > 0 and record.nbytes > 0 for record in runner.report.captured)


def test_one_size_of_tokens_is_not_one_of_requests() -> None:
    shape = PhaseShape(TokenCount(12), RequestCount(3), uniform_batch(3, 4).shape)
    answer = ladder(requests=(3, 12)).admit(PHASE, shape)
    assert isinstance(answer, Admitted)
    assert (answer.key.requests, answer.key.tokens) == (3, 12)
