"""`PhaseGraphs`: graphs of uniform phases with their attention, at buckets of requests and lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.buckets import Buckets, length_bucket
from outrider.graphs.capturing import Capturer, out_of_memory, uncapturable
from outrider.graphs.phase_graph import PhaseGraph
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.types import (
    Admitted,
    AttnBatch,
    CaptureHiddenMode,
    CaptureSupport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    TokenCount,
)
from outrider.types.counts import counted

__all__ = ["PhaseGraphs"]

_BY = "phase"

_CAPACITY = 256
"""Every graph holds buffers of its own, so there must not be too many."""

_Owner = tuple[Phase, int, int]
"""A phase, and the ids of its body and its planner."""

_Place = tuple[_Owner, PhaseShape]


@frozen(eq=False)
class _Lost:
    """A body that cannot be captured, kept with its planner so that their ids stay theirs."""

    refused: Refused
    body: GraphBody
    planner: AttnPlanner


class PhaseGraphs:
    """Serves calls of equally many queries per request (decode, verify, draft steps, extend).

    A call is padded to the next bucket of requests, each with all of its queries, and to the next length. With
    ``on_demand`` a graph is captured when it is first needed; else only what `make` was told is served. Of more than 256
    graphs the least recently used goes.
    """

    def __init__(
        self,
        capturer: Capturer,
        buckets: Buckets[RequestCount],
        modes: Mapping[Phase, CaptureHiddenMode],
        *,
        on_demand: bool,
        poison: bool,
    ) -> None:
        self._capturer = capturer
        self._buckets = buckets
        self._modes = modes
        self._on_demand = on_demand
        self._poison = poison
        self._graphs: OrderedDict[_Place, PhaseGraph] = OrderedDict()
        self._lost: dict[_Owner, _Lost] = {}
        self._out_of_memory: dict[tuple[Phase, PhaseShape], Refused] = {}

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return _BY

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call is served and at which size: a function of its shape and what was captured.

        Whose body cannot be captured is refused when it comes; here only where no body of the phase could be.
        """
        captured = {size for owner, size in self._graphs if owner[0] is phase}
        lost = [each for owner, each in self._lost.items() if owner[0] is phase]
        return self._admit(phase, shape, captured, lost[-1] if lost and not captured else None)

    def make(self, phase: Phase, body: GraphBody, shape: PhaseShape, planner: AttnPlanner) -> PhaseShape | Refused:
        """Capture what serves ``shape``, unless that was done before; the size it has.

        Raises:
            CaptureError: the body cannot be captured.
        """
        key = self._bucket_of(phase, shape)
        if isinstance(key, Refused):
            return key
        made = self._graph(phase, body, key, planner)
        return made if isinstance(made, Refused) else made.key

    def serve(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None,
        shape: PhaseShape,
    ) -> Mapping[str, Tensor] | Refused:
        """Outputs of the call by replay, or why there are none."""
        mine = (phase, id(body), id(planner))
        captured = set[PhaseShape]() if self._on_demand else {size for owner, size in self._graphs if owner == mine}
        answer = self._admit(phase, shape, captured, self._lost.get(mine))
        if isinstance(answer, Refused):
            return answer
        try:
            made = self._graph(phase, body, answer.key, planner)
        except CaptureError:
            return self._lost[mine].refused
        return made if isinstance(made, Refused) else made.run(inputs, batch, PhaseShape.of(batch), rows)

    def close(self) -> None:
        """Free every graph and buffer."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._lost.clear()

    def _admit(
        self, phase: Phase, shape: PhaseShape, captured: set[PhaseShape], lost: _Lost | None
    ) -> Admitted | Refused:
        """Whether ``shape`` is served, and at which size: without ``on_demand`` one of those ``captured``."""
        key = self._bucket_of(phase, shape)
        if isinstance(key, Refused):
            return key
        if lost is not None:
            return lost.refused
        if not self._on_demand:
            fitting = [size for size in captured if _holds(size, shape)]
            if not fitting:
                return Refused(
                    RefusalReason.NOT_CAPTURED,
                    f"{phase.value} of {shape}; {counted(len(captured), 'graph')} of the phase, none of that size",
                    "capture the shape before it is run, or let the runner capture on demand",
                    _BY,
                )
            key = min(fitting, key=_cost)
        return Admitted(key, TokenCount(key.tokens - shape.tokens))

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        if shape.attention is None:
            remedy = "nothing need be done for prompts; else give every request equally many queries"
            return Refused(RefusalReason.NOT_UNIFORM, f"{phase.value} of {shape}", remedy, _BY)
        mode = self._modes.get(phase, CaptureHiddenMode.FULL)
        if shape.hidden > mode:
            numbers = f"{phase.value} is captured with hidden states {mode.name}, asked is {shape.hidden.name}"
            return Refused(
                RefusalReason.HIDDEN_MODE, numbers, f"build the runner with {shape.hidden.name} for this phase", _BY
            )
        requests = self._buckets.pick(shape.requests)
        if isinstance(requests, Refused):
            return evolve(requests, by=_BY)
        attention = shape.attention
        length = length_bucket(attention.max_length, 1 << 62)
        key = PhaseShape(TokenCount(requests * attention.queries), requests, evolve(attention, max_length=length), mode)
        return self._out_of_memory.get((phase, key), key)

    def _graph(self, phase: Phase, body: GraphBody, key: PhaseShape, planner: AttnPlanner) -> PhaseGraph | Refused:
        # A graph keeps its body and its planner alive, so their ids stay theirs.
        owner = (phase, id(body), id(planner))
        place = (owner, key)
        graph = self._graphs.get(place)
        if graph is not None:
            self._graphs.move_to_end(place)
            return graph
        if owner in self._lost:
            return self._lost[owner].refused
        if planner.capabilities.capture is CaptureSupport.NONE:
            name = planner.capabilities.name
            numbers = f"attention backend '{name}' declares no plan that can be captured"
            remedy = "choose another attention backend, or a runner that runs attention outside of its graphs"
            return self._lose(owner, Refused(RefusalReason.ATTENTION, numbers, remedy, _BY), body, planner)
        medium = self._capturer.medium(planner.device, _BY)
        if isinstance(medium, Refused):
            return self._lose(owner, medium, body, planner)
        try:
            made = PhaseGraph(phase, body, key, planner, poison=self._poison)
            refused = made.capture(self._capturer, _BY)
        except CaptureError as error:
            self._lose(owner, uncapturable(error, _BY), body, planner)
            raise
        except torch.OutOfMemoryError as error:  # of its buffers, or of its plan
            self._out_of_memory[phase, key] = out_of_memory(error, f"{phase.value} at {key}", _BY)
            return self._out_of_memory[phase, key]
        if refused is not None:
            self._out_of_memory[phase, key] = refused
            return refused
        self._graphs[place] = made
        if len(self._graphs) > _CAPACITY:
            self._graphs.popitem(last=False)[1].close()
        return made

    def _lose(self, owner: _Owner, refused: Refused, body: GraphBody, planner: AttnPlanner) -> Refused:
        self._lost[owner] = _Lost(refused, body, planner)
        return refused


def _holds(size: PhaseShape, shape: PhaseShape) -> bool:
    """Whether a graph of ``size`` serves ``shape``: all the same but for requests, length and hidden states."""
    if size.attention is None or shape.attention is None or size.requests < shape.requests:
        return False
    longer = size.attention.max_length >= shape.attention.max_length
    return longer and evolve(shape.attention, max_length=size.attention.max_length) == size.attention


def _cost(size: PhaseShape) -> tuple[int, int]:
    return (size.tokens, 0 if size.attention is None else size.attention.max_length)
