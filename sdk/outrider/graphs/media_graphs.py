"""`MediaGraphs`: graphs of towers and the like, at the very numbers of items that they are run on."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from outrider.graphs.body_graphs import BodyGraphs, OnDevice
from outrider.graphs.capturing import Capturer
from outrider.graphs.media import items_in
from outrider.graphs.media_graph import MediaGraph
from outrider.interfaces import GraphBody, MediaBody
from outrider.types import Axis, Phase, PhaseShape, RefusalReason, Refused

__all__ = ["MediaGraphs", "declared_eager"]

_BY = "media"

_CAPACITY = 64
"""Graphs hold pixels and rows of their own; a body names a handful of counts."""


def declared_eager(reason: str) -> Refused:
    """The refusal of a body that says itself, by ``reason``, that it can never be captured."""
    remedy = "nothing need be done: it is run directly, once for each prompt with media"
    return Refused(RefusalReason.BODY, reason, remedy, _BY)


class MediaGraphs(BodyGraphs[OnDevice, MediaGraph]):
    """Serves bodies that attend to no KV memory. Of more than 64 graphs the least recently used goes."""

    def __init__(self, capturer: Capturer, *, poison: bool) -> None:
        super().__init__(_BY, capturer, {}, poison=poison, capacity=_CAPACITY)

    def serve(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor] | Refused:
        """Outputs of the call by replay, or why there are none.

        Raises:
            GraphError: ``inputs`` are not what the body declares.
        """
        phase = Phase.MEDIA_ENCODE
        if body.eager_because is not None:
            return self._refusals.lose(phase, body, declared_eager(body.eager_because))
        shape = PhaseShape.of_media(items_in(body, inputs))
        where = next(iter(inputs.values()))  # asked for its device alone
        return self._serve(phase, body, shape, where, lambda graph: graph.run(inputs))

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:  # noqa: ARG002 - there is one
        return PhaseShape.of_media(shape.requests)

    def _holds(self, size: PhaseShape, shape: PhaseShape) -> bool:
        return size.requests == shape.requests

    def _unfit(self, phase: Phase, body: GraphBody, where: OnDevice) -> Refused | None:  # noqa: ARG002
        tokens = [slot.name for slot in (*body.inputs, *body.outputs) if slot.axis is Axis.TOKENS]
        if not tokens:
            return None
        numbers = f"buffers {', '.join(tokens)} of {phase.value} count tokens, a graph is of so many items"
        return Refused(RefusalReason.BODY, numbers, "give the body buffers that count items, as requests", _BY)

    def _capture(self, phase: Phase, body: GraphBody, size: PhaseShape, where: OnDevice) -> MediaGraph | Refused:
        graph = MediaGraph(body, size, where.device, poison=self._poison)
        return graph.capture(self._capturer, phase, _BY) or graph
