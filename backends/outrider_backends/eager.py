"""`EagerRunner`: runs every body directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from outrider.errors import ClosedError
from outrider.graphs import DirectCalls, RunnerOptions
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

__all__ = ["EagerRunner", "create"]


class EagerRunner:
    """Calls bodies as ordinary Python: no capture, no padding, no copies. They are held to what they declare (`DirectCalls`).

    It is the reference that every capturing runner is compared with. Eager execution is what was chosen here, so the
    report counts what ran and no refusals.
    """

    def __init__(self) -> None:
        self._report = DispatchReport(runner="eager")
        self._ran = self._report.ran
        self._direct = DirectCalls()
        self._closed = False

    @property
    def report(self) -> DispatchReport:
        """How often each phase ran; live."""
        return self._report

    @property
    def sizes(self) -> GraphSizes:
        """None: nothing is captured."""
        return GraphSizes()

    def capture(
        self,
        phase: Phase,  # noqa: ARG002
        body: GraphBody,  # noqa: ARG002
        shapes: Sequence[PhaseShape],  # noqa: ARG002
        planner: AttnPlanner,  # noqa: ARG002
    ) -> tuple[PhaseShape, ...]:
        """Nothing is captured: no shapes; ``planner`` is left alone.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("capture")
        return ()

    def capturing(self) -> AbstractContextManager[None]:
        """Nothing is captured within it either."""
        return nullcontext()

    def admit(self, phase: Phase, shape: PhaseShape) -> Refused:
        """Always refused: this runner has no graphs. Counts nothing."""
        numbers = f"{phase.value} of {shape}; 0 graphs"
        if self._closed:
            return Refused(RefusalReason.CLOSED, numbers, "build a new runner")
        return Refused(RefusalReason.NOT_CAPTURED, numbers, "the eager runner never captures; choose one that does")

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body`` for ``inputs`` themselves, attending through a plan for ``batch``.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
            ConformanceError: what it returns is not.
        """
        if self._closed:
            self._check_open(f"run {phase.value}")
        outputs = self._direct.run(phase, body, inputs, batch, BodyCalls(planner.plan(batch).attend), rows)
        self._ran[phase, "eager"] += 1
        return outputs

    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Outputs of ``body`` for ``inputs`` themselves.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
            ConformanceError: what it returns is not.
        """
        phase = Phase.MEDIA_ENCODE
        self._check_open(f"run {phase.value}")
        outputs = self._direct.run_media(body, inputs)
        self._ran[phase, "eager"] += 1
        return outputs

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        """What ``step`` gives, run directly; its phases come to `run`.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("run a round")
        return step(shape)

    def close(self) -> None:
        """A later `run` or `capture` raises `ClosedError`. May be called twice; the report stays readable."""
        self._closed = True
        self._direct.clear()

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise ClosedError(f"cannot {verb}: the eager runner was closed; build a new one")


def create(options: RunnerOptions) -> EagerRunner:  # noqa: ARG001 - it captures nothing at any size
    """A new eager runner (entry point ``outrider.runners``)."""
    return EagerRunner()
