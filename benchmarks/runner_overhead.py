"""What the seam of runners costs where there are no graphs: the eager runner against bodies that are simply called.

``python -m benchmarks.runner_overhead`` from the checkout; see ``--help``. On this CPU, one thread, float32, batch 1. The
bare loop takes part twice, so that the difference of two equal contestants tells what noise is.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from benchmarks._cases import greedy_cases
from benchmarks._outrider import outrider_contestant
from benchmarks._pair import load_pair
from benchmarks._race import Result, race
from benchmarks._report import Report, Table, environment
from outrider.graphs import media_calls, wanted_rows
from outrider.interfaces import AttnPlanner, GraphBody, MediaBody, RoundStep
from outrider.types import (
    AttnBatch,
    BodyCalls,
    DispatchReport,
    GraphSizes,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RoundShape,
    StepResult,
)
from outrider_backends.eager import EagerRunner

__all__ = ["BareRunner", "Overhead", "overhead"]

_LEAST_NOISE = 0.01
"""What is less cannot be told from the order in which the contestants take turns."""


class BareRunner:
    """Calls bodies and nothing else: counts nothing, checks nothing."""

    @property
    def report(self) -> DispatchReport:
        return DispatchReport("bare")

    @property
    def sizes(self) -> GraphSizes:
        return GraphSizes()

    def capture(
        self,
        phase: Phase,  # noqa: ARG002
        body: GraphBody,  # noqa: ARG002
        shapes: Sequence[PhaseShape],  # noqa: ARG002
        planner: AttnPlanner,  # noqa: ARG002
    ) -> tuple[PhaseShape, ...]:
        return ()

    def capturing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def admit(self, phase: Phase, shape: PhaseShape) -> Refused:
        return Refused(RefusalReason.NOT_CAPTURED, f"{phase.value} of {shape}", "choose a runner that captures")

    def run(
        self,
        phase: Phase,  # noqa: ARG002
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        return wanted_rows(body.outputs, body(inputs, BodyCalls(planner.plan(batch).attend)), rows)

    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return body(inputs, media_calls())

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        return step(shape)

    def close(self) -> None:
        pass


@frozen
class Overhead:
    """One draft: the bare loop twice and the eager runner, timed in turns."""

    name: str
    bare: Result
    eager: Result
    bare_again: Result

    @property
    def ratio(self) -> float:
        """Time with the eager runner over that of the bare loop: the median over turns."""
        return statistics.median(2 * eager / (bare + again) for bare, eager, again in self._turns())

    @property
    def noise(self) -> float:
        """How far the two bare loops are apart in half of the turns, as a share."""
        return statistics.median(abs(bare / again - 1) for bare, _, again in self._turns())

    @property
    def within_noise(self) -> bool:
        """Whether the eager runner costs nothing that can be measured."""
        return self.ratio - 1 <= max(self.noise, _LEAST_NOISE)

    def _turns(self) -> list[tuple[float, float, float]]:
        """Seconds of the three in each turn."""
        everybody = (self.bare, self.eager, self.bare_again)
        times = [[seconds for group in one.seconds for seconds in group] for one in everybody]
        return list(zip(*times, strict=True))


def overhead(name: str, length: int, num_prompts: int, repeats: int) -> Overhead:
    """Time chains of ``length`` (0: plain decoding) on the embedded pair.

    Raises:
        WrongTextError: a text is not the reference's.
    """
    pair = load_pair(torch.device("cpu"))
    builder = pair.chain(length) if length else None
    field = [
        outrider_contestant("bare", pair, builder, BareRunner),
        outrider_contestant("eager", pair, builder, EagerRunner),
        outrider_contestant("bare again", pair, builder, BareRunner),
    ]
    return Overhead(name, *race(field, greedy_cases()[:num_prompts], 1, repeats))


def overhead_table(found: Sequence[Overhead]) -> Table:
    """One row per draft."""
    return Table(
        ("", "bare ms/round", "eager runner ms/round", "ratio", "noise", ""),
        tuple(
            (
                one.name,
                f"{statistics.mean((one.bare.ms_per_pass, one.bare_again.ms_per_pass)):.3f}",
                f"{one.eager.ms_per_pass:.3f}",
                f"{one.ratio:.3f}",
                f"±{one.noise:.1%}",
                "within noise" if one.within_noise else "COSTS",
            )
            for one in found
        ),
        frozenset({0, 5}),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runner_overhead", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed repetitions; medians are given")
    parser.add_argument("--quick", action="store_true", help="one prompt, once")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where the runner costs more than noise")
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    markdown: Path | None = options.markdown
    quick = bool(options.quick)
    torch.set_num_threads(1)
    found = [
        overhead(name, length, 1 if quick else 4, 1 if quick else int(options.repeats))
        for name, length in (("drafting off", 0), ("chain 5", 5))
    ]
    report = Report("overhead")
    report.add(environment(torch.device("cpu")))
    report.add(overhead_table(found))
    if markdown is not None:
        report.write(markdown)
    return int(bool(options.strict) and not all(one.within_noise for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
