"""The ladder: what one kind of graph does not serve goes one step down, each refusal counted and explained, values right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import pytest
import torch
from attrs import define, evolve
from torch import Tensor

from outrider.errors import CaptureError, ClosedError, ConfigurationError, ConformanceError, GraphError
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import AttnPlan, GraphBody, GraphMedium
from outrider.types import (
    Admitted,
    AttnBatch,
    Axis,
    BodyCalls,
    BufferSlot,
    CaptureHiddenMode,
    CaptureSupport,
    OutputWants,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    Role,
    RoundShape,
    SamplingFeatures,
    StepResult,
    TokenCount,
    TreeShape,
)
from outrider_backends.cuda_graph import CudaGraphMedium, cuda_graph_runner
from outrider_backends.tape import TapeMedium
from tests.support.bodies import Body, OutsideBody, X, read
from tests.support.media import FailingMedium, NoGraphs
from tests.support.planners import Doubling, FixedPlanner, uniform_batch

PHASE = Phase.TARGET_VERIFY
PLANNER = FixedPlanner()
RAGGED = evolve(uniform_batch(3, 2), query_lens=(3, 1, 2), host_prefix_lens=(0, 0, 0))
PROMPT = evolve(uniform_batch(2, 3), host_prefix_lens=(0, 0))

Explained = dict[str, RefusalReason]
"""What refused, and why."""


def ladder(
    *media: GraphMedium,
    steps: Steps | None = None,
    requests: Sequence[int] = (1, 4),
    tokens: Sequence[int] = (2, 6, 16),
    role: Role = Role.BOTH,
    on_demand: bool = True,
    modes: Mapping[Phase, CaptureHiddenMode] | None = None,
) -> LadderRunner:
    options = GraphOptions(
        requests=request_buckets(requests),
        tokens=token_buckets(tokens),
        role=role,
        on_demand=on_demand,
        hidden_modes={} if modes is None else modes,
        poison=True,
    )
    return LadderRunner("test", media or (TapeMedium(debug=True),), steps, options)


def run(
    runner: LadderRunner,
    body: GraphBody,
    batch: AttnBatch,
    planner: FixedPlanner | None = None,
    phase: Phase = PHASE,
    x: Tensor | None = None,
) -> Tensor:
    given = torch.randn(batch.num_tokens, 2) if x is None else x
    found = runner.run(phase, body, {"x": given}, batch, PLANNER if planner is None else planner)["x"]
    if isinstance(body, Body) and body.extra is torch.neg:
        assert torch.equal(found, -4 * given)
    return found


def explained(runner: LadderRunner, phase: Phase = PHASE) -> Explained:
    assert all(refusal.numbers and refusal.remedy for refusal in runner.report.explained.values())
    assert all(
        (refusal.by, refusal.reason) == (by, reason) for (_, by, reason), refusal in runner.report.explained.items()
    )
    return {by: reason for (of, by, reason) in runner.report.explained if of is phase}


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


# -- what is captured ---------------------------------------------------------------------------------------------------


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


# -- hidden states and roles --------------------------------------------------------------------------------------------


EXTEND = Phase.DRAFT_EXTEND


def extend(runner: LadderRunner, body: GraphBody, batch: AttnBatch, rows: Tensor | None) -> None:
    x = torch.randn(batch.num_tokens, 2)
    found = runner.run(EXTEND, body, {"x": x}, batch, PLANNER, rows)["x"]
    assert torch.equal(found, -4 * (x if rows is None else x[rows]))


@pytest.mark.parametrize("batch", [uniform_batch(3, 2), RAGGED], ids=["uniform", "ragged"])
def test_all_rows_of_a_runner_that_captured_the_last_ones(batch: AttnBatch) -> None:
    runner, body, rows = ladder(), Body(), torch.tensor([1, 3, 5])
    extend(runner, body, batch, None)
    assert runner.report.ran == {(EXTEND, "eager"): 1}
    assert runner.report.explained[EXTEND, "breakable", RefusalReason.HIDDEN_MODE].numbers == (
        "draft extend is captured with hidden states LAST, asked is FULL"
    )
    assert explained(runner, EXTEND)["breakable"] is RefusalReason.HIDDEN_MODE
    extend(runner, body, batch, rows)
    assert runner.report.ran[EXTEND, "eager"] == 1
    assert isinstance(runner.admit(EXTEND, PhaseShape.of(batch, CaptureHiddenMode.LAST)), Admitted)
    refusal = runner.admit(EXTEND, PhaseShape.of(batch))
    assert isinstance(refusal, Refused)
    assert refusal.reason is RefusalReason.HIDDEN_MODE


@pytest.mark.parametrize("batch", [uniform_batch(3, 2), RAGGED], ids=["uniform", "ragged"])
def test_the_last_rows_of_a_runner_that_captured_all(batch: AttnBatch) -> None:
    runner, body = ladder(modes={EXTEND: CaptureHiddenMode.FULL}), Body()
    for rows in (None, torch.tensor([0, 2, 5]), None, torch.tensor([1, 1, 4])):
        extend(runner, body, batch, rows)
    assert (EXTEND, "eager") not in runner.report.ran
    assert len(runner.report.captured) == 1, "one graph serves both"


def test_roles() -> None:
    """A worker for prompts captures nothing of rounds, one for rounds nothing of prompts; both say so."""
    for role, served, left_out in ((Role.PREFILL, "prompt", "round"), (Role.DECODE, "round", "prompt")):
        runner, body = ladder(role=role), Body()
        calls = {"prompt": (Phase.TARGET_PREFILL, PROMPT), "round": (PHASE, uniform_batch(2))}
        for kind, (phase, batch) in calls.items():
            run(runner, body, batch, phase=phase)
            shape = PhaseShape.of(batch)
            captured = runner.capture(phase, body, [shape], FixedPlanner())
            assert bool(captured) == isinstance(runner.admit(phase, shape), Admitted) == (kind == served)
        phase = calls[left_out][0]
        assert runner.report.ran[phase, "eager"] == 1
        assert explained(runner, phase) == {"": RefusalReason.ROLE}
        assert f"on a worker for {role.value} only" in runner.report.explained[phase, "", RefusalReason.ROLE].numbers
        assert {record.phase for record in runner.report.captured} == {calls[served][0]}
        sizes = runner.sizes
        assert (bool(sizes.tokens), bool(sizes.requests)) == (served == "prompt", served == "round")


def test_an_extension_belongs_to_prompts_or_to_rounds() -> None:
    for role, prompt in ((Role.PREFILL, True), (Role.DECODE, False)):
        runner = ladder(role=role)
        extend(runner, Body(), PROMPT, torch.tensor([0, 4]))
        extend(runner, Body(), uniform_batch(2, 3), torch.tensor([0, 4]))
        assert runner.report.ran[EXTEND, "eager"] == 1
        assert runner.report.ran[EXTEND, "breakable" if prompt else "phase"] == 1


def test_rounds_are_not_captured_by_a_worker_for_prompts() -> None:
    runner = ladder(role=Role.PREFILL)
    for _ in range(3):
        assert runner.run_round(round_shape(), one_round).packed.shape == (1, 4)
    assert runner.report.refused == {(Phase.ROUND, RefusalReason.ROLE): 3}
    assert explained(runner, Phase.ROUND) == {"round": RefusalReason.ROLE}
    assert not runner.report.captured


def round_shape(requests: int = 1) -> RoundShape:
    count = RequestCount(requests)
    return RoundShape(count, 10, TreeShape.chain(2), SamplingFeatures(), OutputWants(), RequestCount(8), 64)


def one_round(shape: RoundShape) -> StepResult:
    return StepResult(torch.zeros(shape.requests, 4, dtype=torch.int64) + 1)


# -- pieces outside of graphs -------------------------------------------------------------------------------------------


def positive(x: Tensor) -> Tensor:
    """Rows kept where positive: an index of as many places as there are."""
    out = torch.zeros_like(x)
    places = (x > 0).nonzero(as_tuple=True)
    out[places] = x[places]
    return out


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    assert torch.equal(scale, torch.arange(1.0, 6.0)), "what counts no tokens is given whole"
    return x * scale.sum().item()


def expected_of(x: Tensor) -> Tensor:
    return positive(x + 1) * 2 + 2 * (x * 3) * 15


@pytest.mark.parametrize("steps", [Steps(), Steps(phases=False), Steps(phases=False, breakable=False)])
def test_pieces_that_cannot_be_captured_run_between_segments(steps: Steps) -> None:
    """Two results that are alive at once do not share memory; a table of five numbers stays one, whatever the rows."""
    kind = "phase" if steps.phases else "breakable" if steps.breakable else "eager"
    rows: list[int] = []

    def seen(x: Tensor) -> Tensor:
        rows.append(x.shape[0])
        return positive(x)

    runner, body = ladder(steps=steps), OutsideBody(seen, scaled)
    counts = [3, 4, 1, 4, 2]
    for count in counts:
        x = torch.randn(count, 2)
        assert torch.equal(run(runner, body, uniform_batch(count), x=x), expected_of(x))
    assert runner.report.ran == {(PHASE, kind): len(counts)}
    assert not runner.report.refused
    padded = [1 if count == 1 else 4 for count in counts]
    assert rows == (padded if kind == "phase" else counts), "in segments only real rows, and never while capturing"


def test_pieces_outside_of_ragged_batches() -> None:
    runner, body = ladder(), OutsideBody(positive, scaled)
    for batch in (RAGGED, PROMPT, evolve(RAGGED, query_lens=(0, 5, 0), slots=RAGGED.slots[:5]), RAGGED):
        x = torch.randn(batch.num_tokens, 2)
        assert torch.equal(run(runner, body, batch, x=x), expected_of(x))
    assert runner.report.ran == {(PHASE, "breakable"): 4}


def test_as_many_rows_as_the_table_has_numbers() -> None:
    """Where both have five rows they cannot be told apart, so both are cut: what is cut is only padding."""
    runner, body = ladder(tokens=(5,)), OutsideBody(positive, lambda x, scale: x * len(scale))
    for count in (5, 3):
        x = torch.randn(count, 2)
        batch = evolve(uniform_batch(count), host_prefix_lens=(0,) * count)
        assert torch.equal(run(runner, body, batch, x=x), positive(x + 1) * 2 + 2 * (x * 3) * count)


@pytest.mark.parametrize("steps", [Steps(), Steps(phases=False)], ids=["phase", "breakable"])
def test_what_a_piece_raises_comes_as_it_is_and_the_next_call_is_right(steps: Steps) -> None:
    fail = [False]

    def failing(x: Tensor) -> Tensor:
        if fail[0]:
            raise ValueError("the piece failed")
        return positive(x)

    runner, body = ladder(steps=steps), OutsideBody(failing, scaled)
    run(runner, body, uniform_batch(3))
    fail[0] = True
    with pytest.raises(ValueError, match="the piece failed"):
        run(runner, body, uniform_batch(3))
    fail[0] = False
    x = torch.randn(3, 2)
    assert torch.equal(run(runner, body, uniform_batch(3), x=x), expected_of(x))
    assert (PHASE, "eager") not in runner.report.ran


class Failing(Doubling):
    """Attention that fails when it is told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return super().attend(layer, q, k, v)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), KeyboardInterrupt(), RuntimeError("kernel")])
def test_attention_that_fails_between_segments(error: BaseException) -> None:
    plan = Failing()

    def make(batch: AttnBatch) -> AttnPlan:
        return plan

    runner, body, planner = ladder(), Body(), FixedPlanner(make)
    run(runner, body, RAGGED, planner)
    plan.error = error
    with pytest.raises(type(error)):
        run(runner, body, RAGGED, planner)
    plan.error = None
    run(runner, body, RAGGED, planner)
    assert runner.report.ran == {(PHASE, "breakable"): 2}


# -- captures that fail -------------------------------------------------------------------------------------------------


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


# -- what is wrong with a call ------------------------------------------------------------------------------------------


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
