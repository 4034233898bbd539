"""`GraphRunner` and `GraphBody`: how a phase of the loop is executed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from outrider.interfaces.attention import AttnPlan
from outrider.types import Admitted, Attend, BufferSlot, DispatchReport, Phase, PhaseShape, Refused

__all__ = ["GraphBody", "GraphRunner"]


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
    def __call__(self, buffers: Mapping[str, Tensor], attend: Attend) -> dict[str, Tensor]:
        """Outputs by name for the inputs by name; device only, no host read, no data-dependent shape."""
        ...


class GraphRunner(Protocol):
    """Executes bodies: directly, or by replaying a capture."""

    @property
    @abstractmethod
    def report(self) -> DispatchReport:
        """What ran where and what was refused why; live."""
        ...

    @abstractmethod
    def capture(
        self,
        phase: Phase,
        body: GraphBody,
        shapes: Sequence[PhaseShape],
        plan: Callable[[PhaseShape], AttnPlan],
    ) -> tuple[PhaseShape, ...]:
        """Capture ``body`` at each of ``shapes``; the shapes that were captured."""
        ...

    @abstractmethod
    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call of this shape is served by a graph: a pure function of shapes."""
        ...

    @abstractmethod
    def run(
        self, phase: Phase, body: GraphBody, shape: PhaseShape, inputs: Mapping[str, Tensor], plan: AttnPlan
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body`` for ``inputs``; valid until the next call of the same phase."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Free every graph and buffer; a later ``run`` raises `ClosedError`. May be called twice."""
        ...
