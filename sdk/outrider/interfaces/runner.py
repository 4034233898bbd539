"""`GraphRunner`, `GraphBody` and `MediaBody`: how a phase of the loop is executed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from outrider.interfaces.attention import AttnPlanner
from outrider.types import (
    Admitted,
    AttnBatch,
    BodyCalls,
    BufferSlot,
    CaptureRecord,
    DispatchReport,
    GraphSizes,
    Phase,
    PhaseShape,
    Refused,
    RoundShape,
    StepResult,
)

__all__ = ["CaptureProgress", "GraphBody", "GraphRunner", "MediaBody", "RoundStep"]


class GraphBody(Protocol):
    """A function of named buffers: what a runner captures or calls."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[BufferSlot, ...]:
        """The buffers the body reads."""
        ...

    @property
    @abstractmethod
    def outputs(self) -> tuple[BufferSlot, ...]:
        """The buffers the body returns."""
        ...

    @abstractmethod
    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        """Outputs by name for the inputs by name; device only, no host read, no data-dependent shape.

        What cannot be so is run through ``calls.outside``.
        """
        ...


class MediaBody(GraphBody, Protocol):
    """What encodes media before a prompt is run: it attends to no KV memory, and its buffers count items as requests.

    No item depends on another. `outrider.graphs.encode_media` cuts any number of items into groups of its `counts`.
    """

    @property
    @abstractmethod
    def counts(self) -> tuple[int, ...]:
        """How many items it is ever run on at once, ascending from 1; empty where that is any number."""
        ...

    @property
    @abstractmethod
    def eager_because(self) -> str | None:
        """Why it can never be captured, in a clause; ``None`` where it can.

        Where it says so, its buffers need not be declared, as nothing holds them.
        """
        ...


class RoundStep(Protocol):
    """A whole round over storage that stays where it is."""

    @abstractmethod
    def __call__(self, shape: RoundShape) -> StepResult:
        """Run the round at ``shape``; what it gives, on the device.

        ``shape`` may have more requests and a larger bound than was asked: rows after the running ones stand idle.
        """
        ...


class CaptureProgress(Protocol):
    """Told how far capturing before the first request has come."""

    @abstractmethod
    def __call__(self, done: int, total: int, captured: Sequence[CaptureRecord], /) -> None:
        """``done`` of ``total`` sizes were run; ``captured``: the graphs that came of the newest of them."""
        ...


class GraphRunner(Protocol):
    """Executes bodies: directly, or by replaying a capture."""

    @property
    @abstractmethod
    def report(self) -> DispatchReport:
        """What ran where and what was refused why; live."""
        ...

    @property
    @abstractmethod
    def sizes(self) -> GraphSizes:
        """At which sizes it captures; empty where it has no graphs, or none for its `Role`."""
        ...

    @abstractmethod
    def capture(
        self, phase: Phase, body: GraphBody, shapes: Sequence[PhaseShape], planner: AttnPlanner
    ) -> tuple[PhaseShape, ...]:
        """Capture ``body`` so that calls of each of ``shapes`` are served; the shapes that were captured, padding included.

        May synchronise and allocate; runs the body more than once. Runners that capture attention too own the `AttnBatch`
        it reads and build `AttnPlanner.static_plan` over it; others leave ``planner`` alone. A `MediaBody`
        (``MEDIA_ENCODE``) is captured for as many items as a shape has requests.

        Raises:
            CaptureError: the body cannot be captured; every line that prevents it is named.
        """
        ...

    @abstractmethod
    def capturing(self) -> AbstractContextManager[None]:
        """Within it every call captures what it needs, whatever was chosen; a runner without graphs does as always."""
        ...

    @abstractmethod
    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call of this shape is served by a graph: a pure function of shapes, given what was captured."""
        ...

    @abstractmethod
    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body`` for ``inputs``, its rows attending as ``batch`` says.

        ``rows [B]`` int64: of outputs that count tokens only these are wanted, one a request (`CaptureHiddenMode.LAST`);
        without it, all (FULL).

        They are valid until the next call of the same phase or body. The one way a body is run, whatever serves it: directly
        under `AttnPlanner.plan`, by replaying a graph whose buffers and `AttnBatch` are filled from ``inputs`` and
        ``batch`` first, or in pieces between which attention runs under `AttnPlanner.plan`. ``inputs`` and ``batch`` are
        only read. A call that no graph serves is run directly and counted in the report, with the reason.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
            ConformanceError: what the body returns is not.
        """
        ...

    @abstractmethod
    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Outputs of ``body`` for ``inputs``, which are only read; valid until the next call of the same body.

        Nothing is padded: a graph serves the number of items that it was captured at. A call that no graph serves is run
        directly and counted in the report, with the reason. Not while a round is run: both may use the same memory.

        Raises what `run` does.
        """
        ...

    @abstractmethod
    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        """What ``step`` gives, run directly or by replaying a capture of it; valid until the next round.

        Draft steps, verification, acceptance, commit and extension are then one graph. ``step`` reads and changes only
        storage of the engine that stays where it is, and does the same for every call of equal shape; a runner may run it
        at a larger one. Rounds with host code in them (`Drafter.runs_on_host`, token constraints) do not come this way.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Free every graph and buffer; a later call that runs anything raises `ClosedError`. May be called twice."""
        ...
