"""Hidden states that were not captured, and what a worker's role leaves to others, is told and run directly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.graphs import LadderRunner
from outrider.interfaces import GraphBody
from outrider.types import Admitted, AttnBatch, CaptureHiddenMode, Phase, PhaseShape, RefusalReason, Refused, Role
from tests.graphs.ladders import PHASE, PLANNER, PROMPT, RAGGED, explained, ladder, one_round, round_shape, run
from tests.support.bodies import Body
from tests.support.planners import FixedPlanner, uniform_batch

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
