"""`BreakableGraphs`: graphs of bodies in segments, at buckets of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.graphs.body_graphs import BodyGraphs
from outrider.graphs.breakable_graph import BreakableGraph
from outrider.graphs.buckets import Buckets
from outrider.graphs.buffers import BufferSet
from outrider.graphs.capturing import Capturer
from outrider.graphs.crossing import Crossing
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.types import (
    AttnBatch,
    Axis,
    CaptureHiddenMode,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    TokenCount,
)
from outrider.types.counts import counted

__all__ = ["BreakableGraphs"]

_BY = "breakable"


@frozen(eq=False)
class _Shared:
    """The buffers of one body, for the largest bucket; the body is kept so that its id stays its own."""

    body: GraphBody
    inputs: BufferSet
    outputs: BufferSet


class BreakableGraphs(BodyGraphs[AttnPlanner, BreakableGraph]):
    """Serves calls of any batch by their number of tokens, padded to the next bucket, with attention between segments.

    A graph is of a body and of its tokens alone, whichever phase and planner ask.
    """

    def __init__(
        self,
        capturer: Capturer,
        buckets: Buckets[TokenCount],
        modes: Mapping[Phase, CaptureHiddenMode],
        *,
        poison: bool,
    ) -> None:
        super().__init__(_BY, capturer, modes, poison=poison)
        self._buckets = buckets
        self._shared: dict[int, _Shared] = {}
        self._crossing = Crossing(buckets.largest)

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
        actual = _size(batch.num_tokens)
        return self._serve(
            phase, body, shape, planner, lambda graph: graph.run(inputs, planner.plan(batch), actual, rows)
        )

    def close(self) -> None:
        """Free every graph and buffer."""
        super().close()
        self._shared.clear()
        self._crossing.clear()

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        hidden = self._refusals.of_hidden(phase, shape)
        if hidden is not None:
            return hidden
        tokens = self._buckets.pick(shape.tokens)
        return evolve(tokens, by=_BY) if isinstance(tokens, Refused) else _size(tokens)

    def _holds(self, size: PhaseShape, shape: PhaseShape) -> bool:
        return size.tokens >= shape.tokens

    def _name(self, size: PhaseShape) -> str:
        return counted(size.tokens, "token")

    def _lacking(self, phase: Phase, shape: PhaseShape, captured: Set[PhaseShape]) -> str:
        sizes = sorted(size.tokens for size in captured)
        return f"{phase.value} of {counted(shape.tokens, 'token')}; captured are {sizes or 'none'}"

    def _unfit(self, phase: Phase, body: GraphBody, where: AttnPlanner) -> Refused | None:  # noqa: ARG002
        per_request = [slot.name for slot in body.inputs if slot.axis is Axis.REQUESTS]
        if not per_request:
            return None
        numbers = (
            f"inputs {', '.join(per_request)} of {phase.value} count requests, the graph serves any number of them"
        )
        remedy = "give the body rows that count tokens, or capture it with its attention"
        return Refused(RefusalReason.BODY, numbers, remedy, _BY)

    def _capture(self, phase: Phase, body: GraphBody, size: PhaseShape, where: AttnPlanner) -> BreakableGraph | Refused:
        shared, device = self._buffers_of(body, where.device), where.device
        graph = BreakableGraph(
            body,
            size,
            BufferSet(body.inputs, size, device, poison=self._poison, within=shared.inputs),
            BufferSet(body.outputs, size, device, within=shared.outputs),
            self._crossing,
            poison=self._poison,
        )
        return graph.capture(self._capturer, phase, _BY) or graph

    def _buffers_of(self, body: GraphBody, device: torch.device) -> _Shared:
        shared = self._shared.get(id(body))
        if shared is None:
            largest = _size(self._buckets.largest)
            shared = self._shared[id(body)] = _Shared(
                body, BufferSet(body.inputs, largest, device), BufferSet(body.outputs, largest, device)
            )
        return shared


def _size(tokens: TokenCount) -> PhaseShape:
    """What the graph is captured with: the metadata of one request."""
    return PhaseShape(tokens, RequestCount(1))
