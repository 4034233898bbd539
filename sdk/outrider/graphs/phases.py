"""`PhaseGraphs`: graphs of uniform phases with their attention, at buckets of requests and lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from attrs import evolve
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.buckets import Buckets, length_bucket
from outrider.graphs.capturing import Capturer, uncapturable
from outrider.graphs.phase_graph import PhaseGraph
from outrider.graphs.refusals import Refusals
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

_Place = tuple[Phase, int, int, PhaseShape]
"""A phase, the ids of its body and its planner, and the size."""


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
        self._refusals = Refusals(_BY, modes)
        self._on_demand = on_demand
        self._poison = poison
        self._graphs: OrderedDict[_Place, PhaseGraph] = OrderedDict()

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return _BY

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call is served and at which size: a function of its shape and what was captured.

        Whose body cannot be captured is refused when it comes; here only where no body of the phase could be.
        """
        captured = {size for of, _, _, size in self._graphs if of is phase}
        return self._admit(phase, shape, captured, None if captured else self._refusals.of_phase(phase))

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
        captured = set[PhaseShape]()
        if not self._on_demand:
            captured = {place[3] for place in self._graphs if place[:3] == (phase, id(body), id(planner))}
        answer = self._admit(phase, shape, captured, self._refusals.of_body(phase, body))
        if isinstance(answer, Refused):
            return answer
        try:
            made = self._graph(phase, body, answer.key, planner)
        except CaptureError as error:
            return uncapturable(error, _BY)
        return made if isinstance(made, Refused) else made.run(inputs, batch, PhaseShape.of(batch), rows)

    def close(self) -> None:
        """Free every graph and buffer."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._refusals.clear()

    def _admit(
        self, phase: Phase, shape: PhaseShape, captured: set[PhaseShape], lost: Refused | None
    ) -> Admitted | Refused:
        """Whether ``shape`` is served, and at which size: without ``on_demand`` one of those ``captured``."""
        key = self._bucket_of(phase, shape)
        if isinstance(key, Refused):
            return key
        if lost is not None:
            return lost
        if not self._on_demand:
            fitting = [size for size in captured if _holds(size, shape)]
            if not fitting:
                return self._refusals.not_captured(
                    f"{phase.value} of {shape}; {counted(len(captured), 'graph')} of the phase, none of that size"
                )
            key = min(fitting, key=_cost)
        return Admitted(key, TokenCount(key.tokens - shape.tokens))

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        if shape.attention is None:
            remedy = "nothing need be done for prompts; else give every request equally many queries"
            return Refused(RefusalReason.NOT_UNIFORM, f"{phase.value} of {shape}", remedy, _BY)
        hidden = self._refusals.of_hidden(phase, shape)
        if hidden is not None:
            return hidden
        requests = self._buckets.pick(shape.requests)
        if isinstance(requests, Refused):
            return evolve(requests, by=_BY)
        attention = shape.attention
        length = length_bucket(attention.max_length, 1 << 62)
        tokens = TokenCount(requests * attention.queries)
        key = PhaseShape(tokens, requests, evolve(attention, max_length=length), self._refusals.mode(phase))
        return self._refusals.of_size((phase, key)) or key

    def _graph(self, phase: Phase, body: GraphBody, key: PhaseShape, planner: AttnPlanner) -> PhaseGraph | Refused:
        # A graph keeps its body and its planner alive, so their ids stay theirs.
        place = (phase, id(body), id(planner), key)
        graph = self._graphs.get(place)
        if graph is not None:
            self._graphs.move_to_end(place)
            return graph
        lost = self._refusals.of_body(phase, body)
        if lost is not None:
            return lost
        if planner.capabilities.capture is CaptureSupport.NONE:
            name = planner.capabilities.name
            numbers = f"attention backend '{name}' declares no plan that can be captured"
            remedy = "choose another attention backend, or a runner that runs attention outside of its graphs"
            return self._refusals.lose(phase, body, Refused(RefusalReason.ATTENTION, numbers, remedy, _BY))
        medium = self._capturer.medium(planner.device, _BY)
        if isinstance(medium, Refused):
            return self._refusals.lose(phase, body, medium)

        def capture() -> PhaseGraph | Refused:
            graph = PhaseGraph(phase, body, key, planner, poison=self._poison)
            return graph.capture(self._capturer, _BY) or graph

        made = self._refusals.capturing(phase, body, (phase, key), f"{phase.value} at {key}", capture)
        if isinstance(made, Refused):
            return made
        self._graphs[place] = made
        if len(self._graphs) > _CAPACITY:
            self._graphs.popitem(last=False)[1].close()
        return made


def _holds(size: PhaseShape, shape: PhaseShape) -> bool:
    """Whether a graph of ``size`` serves ``shape``: all the same but for requests, length and hidden states."""
    if size.attention is None or shape.attention is None or size.requests < shape.requests:
        return False
    longer = size.attention.max_length >= shape.attention.max_length
    return longer and evolve(shape.attention, max_length=size.attention.max_length) == size.attention


def _cost(size: PhaseShape) -> tuple[int, int]:
    return (size.tokens, 0 if size.attention is None else size.attention.max_length)
