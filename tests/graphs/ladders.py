"""Ladders of small buckets for tests, batches that they serve by this step or that, and bodies' pieces outside of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor

from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import GraphBody, GraphMedium
from outrider.types import (
    AttnBatch,
    CaptureHiddenMode,
    OutputWants,
    Phase,
    RefusalReason,
    RequestCount,
    Role,
    RoundShape,
    SamplingFeatures,
    StepResult,
    TreeShape,
)
from outrider_backends.tape import TapeMedium
from tests.support.bodies import Body, positive
from tests.support.planners import FixedPlanner, uniform_batch

__all__ = [
    "PHASE",
    "PLANNER",
    "PROMPT",
    "RAGGED",
    "Explained",
    "expected_of",
    "explained",
    "ladder",
    "one_round",
    "round_shape",
    "run",
    "scaled",
]

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


def round_shape(requests: int = 1) -> RoundShape:
    count = RequestCount(requests)
    return RoundShape(count, 10, TreeShape.chain(2), SamplingFeatures(), OutputWants(), RequestCount(8), 64)


def one_round(shape: RoundShape) -> StepResult:
    return StepResult(torch.zeros(shape.requests, 4, dtype=torch.int64) + 1)


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    assert torch.equal(scale, torch.arange(1.0, 6.0)), "what counts no tokens is given whole"
    return x * scale.sum().item()


def expected_of(x: Tensor) -> Tensor:
    return positive(x + 1) * 2 + 2 * (x * 3) * 15
