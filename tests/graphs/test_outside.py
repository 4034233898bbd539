"""What no graph can hold runs between its segments, on real rows, and what it raises is raised."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.graphs import Steps
from outrider.interfaces import AttnPlan
from outrider.types import AttnBatch
from tests.graphs.ladders import PHASE, PROMPT, RAGGED, expected_of, ladder, run, scaled
from tests.support.bodies import Body, OutsideBody, positive
from tests.support.planners import Doubling, FixedPlanner, uniform_batch


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
