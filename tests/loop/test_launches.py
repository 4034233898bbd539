"""What the loop itself launches around the phases of a runner: few operators, however many prompts come at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor

from outrider.drafting.builders import ChainBuilder
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import AttnBatch, Phase
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.support.operators import Operators
from tests.support.pair import trained_pair


class Uncounted(EagerRunner):
    """What runs inside of phases does not count."""

    operators: Operators | None = None

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        if self.operators is None:
            return super().run(phase, body, inputs, batch, planner, rows)
        with self.operators.left_out():
            return super().run(phase, body, inputs, batch, planner, rows)


@pytest.mark.parametrize("prompts", [1, 8])
def test_admission_and_prefill_cost_few_operators(prompts: int) -> None:
    """Three are the model's own: two embeddings and the head. Pages are uploaded for each request."""
    pair, runner = trained_pair(), Uncounted()
    engine = build_engine(
        pair.target,
        ChainBuilder(pair.eagle3, 5),
        attention=SdpaBackend(),
        runner=runner,
        options=EngineOptions(max_batch_size=8, max_length=256),
    )
    for number in range(prompts):
        engine.submit(Request(tuple(range(3, 20 + 3 * number)), 8))
    with Operators() as admitting:
        engine.admit()
    with Operators() as running:
        runner.operators = running
        engine.prefill()
        runner.operators = None
    assert len(engine.read()) == prompts
    assert admitting.number == prompts
    assert running.number <= 50, running.ran
