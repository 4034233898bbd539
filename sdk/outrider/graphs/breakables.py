"""`BreakableGraphs`: graphs of bodies in segments, at buckets of tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.breakable_graph import BreakableGraph
from outrider.graphs.buckets import Buckets
from outrider.graphs.buffers import BufferSet
from outrider.graphs.capturing import Capturer, uncapturable
from outrider.graphs.crossing import Crossing
from outrider.graphs.refusals import Refusals
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.types import (
    Admitted,
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


class BreakableGraphs:
    """Serves calls of any batch by their number of tokens, padded to the next bucket, with attention between segments."""

    def __init__(
        self,
        capturer: Capturer,
        buckets: Buckets[TokenCount],
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
        self._shared: dict[int, _Shared] = {}
        self._crossing = Crossing(buckets.largest)
        self._graphs: dict[tuple[int, TokenCount], BreakableGraph] = {}
        self._captured: dict[Phase, set[TokenCount]] = {}

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return _BY

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a call is served and at how many tokens: a function of its shape and what was captured.

        Whose body cannot be captured is refused when it comes; here only where no body of the phase could be.
        """
        captured = self._captured.get(phase, set())
        return self._admit(phase, shape, captured, None if captured else self._refusals.of_phase(phase))

    def make(self, phase: Phase, body: GraphBody, shape: PhaseShape, planner: AttnPlanner) -> PhaseShape | Refused:
        """Capture what serves ``shape``, unless that was done before; the size it has.

        Raises:
            CaptureError: the body cannot be captured.
        """
        tokens = self._bucket_of(phase, shape)
        if isinstance(tokens, Refused):
            return tokens
        made = self._graph(phase, body, tokens, planner)
        return made if isinstance(made, Refused) else made.size

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
        captured = set[TokenCount]()
        if not self._on_demand:
            captured = {size for owner, size in self._graphs if owner == id(body)} & self._captured.get(phase, set())
        answer = self._admit(phase, shape, captured, self._refusals.of_body(phase, body))
        if isinstance(answer, Refused):
            return answer
        try:
            made = self._graph(phase, body, answer.key.tokens, planner)
        except CaptureError as error:
            return uncapturable(error, _BY)
        if isinstance(made, Refused):
            return made
        actual = PhaseShape(batch.num_tokens, RequestCount(1))
        return made.run(inputs, planner.plan(batch), actual, rows)

    def close(self) -> None:
        """Free every graph and buffer."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._captured.clear()
        self._shared.clear()
        self._refusals.clear()
        self._crossing.clear()

    def _admit(
        self, phase: Phase, shape: PhaseShape, captured: set[TokenCount], lost: Refused | None
    ) -> Admitted | Refused:
        """Whether ``shape`` is served, and at how many tokens: without ``on_demand`` one of those ``captured``."""
        tokens = self._bucket_of(phase, shape)
        if isinstance(tokens, Refused):
            return tokens
        if lost is not None:
            return lost
        if not self._on_demand:
            fitting = [size for size in captured if size >= shape.tokens]
            if not fitting:
                return self._refusals.not_captured(
                    f"{phase.value} of {counted(shape.tokens, 'token')}; captured are {sorted(captured) or 'none'}"
                )
            tokens = min(fitting)
        return Admitted(_size(tokens), TokenCount(tokens - shape.tokens))

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> TokenCount | Refused:
        hidden = self._refusals.of_hidden(phase, shape)
        if hidden is not None:
            return hidden
        tokens = self._buckets.pick(shape.tokens)
        if isinstance(tokens, Refused):
            return evolve(tokens, by=_BY)
        return self._refusals.of_size(tokens) or tokens

    def _graph(
        self, phase: Phase, body: GraphBody, tokens: TokenCount, planner: AttnPlanner
    ) -> BreakableGraph | Refused:
        """The graph of ``body`` at ``tokens``, whichever phase: it depends on nothing else."""
        graph = self._graphs.get((id(body), tokens))
        if graph is None:
            made = self._refusals.of_body(phase, body) or self._capture(phase, body, tokens, planner.device)
            if isinstance(made, Refused):
                return made
            graph = self._graphs[id(body), tokens] = made
        self._captured.setdefault(phase, set()).add(tokens)
        return graph

    def _capture(
        self, phase: Phase, body: GraphBody, tokens: TokenCount, device: torch.device
    ) -> BreakableGraph | Refused:
        per_request = [slot.name for slot in body.inputs if slot.axis is Axis.REQUESTS]
        if per_request:
            numbers = (
                f"inputs {', '.join(per_request)} of {phase.value} count requests, the graph serves any number of them"
            )
            remedy = "give the body rows that count tokens, or capture it with its attention"
            return self._refusals.lose(phase, body, Refused(RefusalReason.BODY, numbers, remedy, _BY))
        medium = self._capturer.medium(device, _BY)
        if isinstance(medium, Refused):
            return self._refusals.lose(phase, body, medium)

        def capture() -> BreakableGraph | Refused:
            shared = self._buffers_of(body, device)
            size = _size(tokens)
            graph = BreakableGraph(
                body,
                size,
                BufferSet(body.inputs, size, device, poison=self._poison, within=shared.inputs),
                BufferSet(body.outputs, size, device, within=shared.outputs),
                self._crossing,
                poison=self._poison,
            )
            return graph.capture(self._capturer, phase, _BY) or graph

        what = f"{phase.value} at {counted(tokens, 'token')}"
        return self._refusals.capturing(phase, body, tokens, what, capture)

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
