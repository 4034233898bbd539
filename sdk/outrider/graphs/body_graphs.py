"""`BodyGraphs`: the outline that all kinds of graphs of bodies share: admit, capture once, serve, refuse and remember."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Generic, Protocol, TypeVar

import torch
from attrs import field, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.capturing import Capturer, uncapturable
from outrider.graphs.refusals import Refusals
from outrider.interfaces import GraphBody
from outrider.types import Admitted, CaptureHiddenMode, Phase, PhaseShape, Refused, TokenCount
from outrider.types.counts import counted

__all__ = ["BodyGraphs", "OnDevice"]


class OnDevice(Protocol):
    """What a body is captured for: an attention planner, or any other thing that stands on one device."""

    @property
    def device(self) -> torch.device:
        """Where it is."""
        ...


class _Closes(Protocol):
    def close(self) -> None: ...


W = TypeVar("W", bound=OnDevice)
G = TypeVar("G", bound=_Closes)

_Place = tuple[Hashable, PhaseShape]
"""Whose graph it is, as `BodyGraphs._owner` has it, and its size."""


@frozen(eq=False)
class _Held(Generic[G]):
    """A graph, and the phases that it was asked for."""

    graph: G
    phases: set[Phase] = field(factory=set[Phase])


class BodyGraphs(ABC, Generic[W, G]):
    """Graphs of one kind, each of one body at one size. A kind says which size a call takes, and how it is captured.

    Where the capturer captures `Capturer.on_demand`, a graph is captured when it is first needed; else only what `make` was
    told is served. A graph must keep alive whatever its owner is told by, since ids stand for it.
    """

    def __init__(
        self,
        by: str,
        capturer: Capturer,
        modes: Mapping[Phase, CaptureHiddenMode],
        *,
        poison: bool,
        capacity: int | None = None,
    ) -> None:
        """``by``: the kind, as reports have it. ``capacity``: of more graphs the least recently used goes."""
        self._by = by
        self._capturer = capturer
        self._refusals = Refusals(by, modes)
        self._poison = poison
        self._capacity = capacity
        self._graphs: OrderedDict[_Place, _Held[G]] = OrderedDict()

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return self._by

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call is served and at which size: a function of its shape and what was captured.

        Whose body cannot be captured is refused when it comes; here only where no body of the phase could be.
        """
        captured = {size for (_, size), held in self._graphs.items() if phase in held.phases}
        return self._admit(phase, shape, captured, None if captured else self._refusals.of_phase(phase))

    def make(self, phase: Phase, body: GraphBody, shape: PhaseShape, where: W) -> PhaseShape | Refused:
        """Capture what serves ``shape``, unless that was done before; the size it has.

        Raises:
            CaptureError: the body cannot be captured.
        """
        size = self._size_of(phase, shape)
        if isinstance(size, Refused):
            return size
        made = self._graph(phase, body, size, where)
        return made if isinstance(made, Refused) else size

    def close(self) -> None:
        """Free every graph and buffer."""
        for held in self._graphs.values():
            held.graph.close()
        self._graphs.clear()
        self._refusals.clear()

    # -- what a kind says ------------------------------------------------------------------------------------------

    @abstractmethod
    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        """The size at which a call is captured, or why it is not: a function of its shape."""

    @abstractmethod
    def _holds(self, size: PhaseShape, shape: PhaseShape) -> bool:
        """Whether a graph of ``size`` serves ``shape``."""

    @abstractmethod
    def _unfit(self, phase: Phase, body: GraphBody, where: W) -> Refused | None:
        """Why ``body`` is not for this kind, as far as its declarations say."""

    @abstractmethod
    def _capture(self, phase: Phase, body: GraphBody, size: PhaseShape, where: W) -> G | Refused:
        """A new graph.

        Raises:
            CaptureError: ``body`` cannot be captured.
        """

    def _owner(self, phase: Phase, body: GraphBody, where: W) -> Hashable:  # noqa: ARG002 - for kinds that need more
        """Whose calls a graph serves."""
        return id(body)

    def _name(self, size: PhaseShape) -> str:
        """``size`` in the units that it has."""
        return str(size)

    def _lacking(self, phase: Phase, shape: PhaseShape, captured: Set[PhaseShape]) -> str:
        """What was asked, and what there is instead."""
        return f"{phase.value} of {shape}; {counted(len(captured), 'graph')} of the phase, none of that size"

    # -- the outline -----------------------------------------------------------------------------------------------

    def _serve(
        self,
        phase: Phase,
        body: GraphBody,
        shape: PhaseShape,
        where: W,
        run: Callable[[G], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor] | Refused:
        """What ``run`` gives of the graph that serves a call of ``shape``, or why there is none."""
        captured = set[PhaseShape]()
        if not self._capturer.on_demand:
            owner = self._owner(phase, body, where)
            captured = {place[1] for place, held in self._graphs.items() if place[0] == owner and phase in held.phases}
        answer = self._admit(phase, shape, captured, self._refusals.of_body(phase, body))
        if isinstance(answer, Refused):
            return answer
        try:
            made = self._graph(phase, body, answer.key, where)
        except CaptureError as error:
            return uncapturable(error, self._by)
        return made if isinstance(made, Refused) else run(made)

    def _admit(
        self, phase: Phase, shape: PhaseShape, captured: Set[PhaseShape], lost: Refused | None
    ) -> Admitted | Refused:
        """Whether ``shape`` is served, and at which size: where nothing is captured on demand, one of those ``captured``."""
        size = self._size_of(phase, shape)
        if isinstance(size, Refused):
            return size
        if lost is not None:
            return lost
        if not self._capturer.on_demand:
            fitting = [one for one in captured if self._holds(one, shape)]
            if not fitting:
                return self._refusals.not_captured(self._lacking(phase, shape, captured))
            size = min(fitting, key=_cost)
        return Admitted(size, TokenCount(size.tokens - shape.tokens))

    def _size_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        size = self._bucket_of(phase, shape)
        return size if isinstance(size, Refused) else self._refusals.of_size((phase, size)) or size

    def _graph(self, phase: Phase, body: GraphBody, size: PhaseShape, where: W) -> G | Refused:
        place = (self._owner(phase, body, where), size)
        held = self._graphs.get(place)
        if held is None:
            made = self._refusals.of_body(phase, body) or self._made(phase, body, size, where)
            if isinstance(made, Refused):
                return made
            held = self._graphs[place] = _Held(made)
            if self._capacity is not None and len(self._graphs) > self._capacity:
                self._graphs.popitem(last=False)[1].graph.close()
        self._graphs.move_to_end(place)
        held.phases.add(phase)
        return held.graph

    def _made(self, phase: Phase, body: GraphBody, size: PhaseShape, where: W) -> G | Refused:
        unfit = self._unfit(phase, body, where)
        if unfit is None:
            medium = self._capturer.medium(where.device, self._by)
            unfit = medium if isinstance(medium, Refused) else None
        if unfit is not None:
            return self._refusals.lose(phase, body, unfit)
        what = f"{phase.value} at {self._name(size)}"
        return self._refusals.capturing(
            phase, body, (phase, size), what, lambda: self._capture(phase, body, size, where)
        )


def _cost(size: PhaseShape) -> tuple[int, int]:
    return (size.tokens, 0 if size.attention is None else size.attention.max_length)
