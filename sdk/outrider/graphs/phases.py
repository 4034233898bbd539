"""`PhaseGraphs`: graphs of uniform phases with their attention, at buckets of requests and lengths."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from attrs import evolve
from torch import Tensor

from outrider.graphs.body_graphs import BodyGraphs
from outrider.graphs.buckets import Buckets, length_bucket
from outrider.graphs.capturing import Capturer
from outrider.graphs.phase_graph import PhaseGraph
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.types import (
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

__all__ = ["PhaseGraphs"]

_BY = "phase"

_CAPACITY = 256
"""Every graph holds buffers of its own, so there must not be too many."""


class PhaseGraphs(BodyGraphs[AttnPlanner, PhaseGraph]):
    """Serves calls of equally many queries per request (decode, verify, draft steps, extend), each of its planner.

    A call is padded to the next bucket of requests, each with all of its queries, and to the next length. Of more than 256
    graphs the least recently used goes.
    """

    def __init__(
        self,
        capturer: Capturer,
        buckets: Buckets[RequestCount],
        modes: Mapping[Phase, CaptureHiddenMode],
        *,
        poison: bool,
    ) -> None:
        super().__init__(_BY, capturer, modes, poison=poison, capacity=_CAPACITY)
        self._buckets = buckets

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
        return self._serve(
            phase, body, shape, planner, lambda graph: graph.run(inputs, batch, PhaseShape.of(batch), rows)
        )

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
        return PhaseShape(tokens, requests, evolve(attention, max_length=length), self._refusals.mode(phase))

    def _holds(self, size: PhaseShape, shape: PhaseShape) -> bool:
        """All must be the same but for requests, length and hidden states."""
        if size.attention is None or shape.attention is None or size.requests < shape.requests:
            return False
        longer = size.attention.max_length >= shape.attention.max_length
        return longer and evolve(shape.attention, max_length=size.attention.max_length) == size.attention

    def _owner(self, phase: Phase, body: GraphBody, where: AttnPlanner) -> Hashable:
        return (phase, id(body), id(where))

    def _unfit(self, phase: Phase, body: GraphBody, where: AttnPlanner) -> Refused | None:  # noqa: ARG002
        if where.capabilities.capture is not CaptureSupport.NONE:
            return None
        numbers = f"attention backend '{where.capabilities.name}' declares no plan that can be captured"
        remedy = "choose another attention backend, or a runner that runs attention outside of its graphs"
        return Refused(RefusalReason.ATTENTION, numbers, remedy, _BY)

    def _capture(self, phase: Phase, body: GraphBody, size: PhaseShape, where: AttnPlanner) -> PhaseGraph | Refused:
        graph = PhaseGraph(phase, body, size, where, poison=self._poison)
        return graph.capture(self._capturer, _BY) or graph
