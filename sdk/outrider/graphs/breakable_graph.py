"""`BreakableGraph`: a body captured in segments, with attention run eagerly between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from outrider.graphs.buffers import BufferSet
from outrider.graphs.capturing import Capturer
from outrider.graphs.crossing import Crossing
from outrider.graphs.results import check_outputs, wanted_rows
from outrider.interfaces import AttnPlan, Break, Captured, GraphBody
from outrider.types import Attend, BodyCalls, Phase, PhaseShape, Refused
from outrider.types.counts import counted

__all__ = ["BreakableGraph"]

_OUT = "attention"


class BreakableGraph:
    """A body captured at a number of tokens, which serves any number of requests and any lengths; use `capture` to make one.

    A segment ends where the body attends, or calls ``outside``. What the layer hands to attention and what it gets back
    stands in buffers that all layers and all sizes share (`Crossing`); only real rows attend. What the body keeps across a
    break beside these is memory of the graph, which nothing else touches between its segments.
    """

    def __init__(
        self,
        body: GraphBody,
        size: PhaseShape,
        inputs: BufferSet,
        outputs: BufferSet,
        crossing: Crossing,
        *,
        poison: bool = False,
    ) -> None:
        """``inputs``, ``outputs`` and ``crossing`` hold at least the tokens of ``size``.

        ``poison``: padding rows of what attention and ``outside`` give are NaN, and so are outputs before every replay.
        """
        self.size = size
        self._body = body
        self._inputs = inputs
        self._outputs = outputs
        self._crossing = crossing
        self._poison = poison
        self._padding = math.nan if poison else 0.0
        self._graph: Captured | None = None
        self._plan: AttnPlan | None = None
        self._real = 0

    def capture(self, capturer: Capturer, phase: Phase, by: str) -> Refused | None:
        """Capture; ``None`` when it is done.

        Raises:
            CaptureError: the body cannot be captured.
            ConformanceError: its outputs are not what it declares.
        """
        size, buffers = self.size, self._inputs.tensors
        warmed = False

        def work(break_: Break) -> Mapping[str, Tensor]:
            nonlocal warmed
            self._crossing.sealed, warmed = warmed, True
            outside = self._crossing.outside("outside", break_, lambda: self._real or None, size.tokens, self._padding)
            outputs = self._body(buffers, BodyCalls(self._attend(break_), outside))
            check_outputs(self._body.outputs, outputs, size, f"{phase.value} at {counted(size.tokens, 'token')}")
            for name, own in self._outputs.tensors.items():
                own.copy_(outputs[name])
            return {}

        try:
            made = capturer.capture(
                phase,
                by,
                counted(size.tokens, "token"),
                work,
                buffers,
                device=next(iter(buffers.values())).device,
                vary=self._inputs.vary,
            )
        finally:
            self._crossing.sealed = False
        if isinstance(made, Refused):
            return made
        self._graph = made
        return None

    def run(
        self, inputs: Mapping[str, Tensor], plan: AttnPlan, actual: PhaseShape, rows: Tensor | None
    ) -> dict[str, Tensor]:
        """The real rows of the outputs for ``inputs`` that attend as ``plan`` says.

        Without ``rows`` they are views of shared buffers; else fresh.

        Raises:
            GraphError: ``inputs`` do not fit the buffers.
        """
        assert self._graph is not None, "capture comes first"
        self._inputs.fill(inputs, actual)
        self._crossing.pad(_OUT, actual.tokens, self.size.tokens, self._padding)
        if self._poison:
            self._outputs.spoil()
        self._plan, self._real = plan, actual.tokens
        try:
            self._graph.replay()
        finally:
            self._plan, self._real = None, 0
        slots = self._body.outputs
        return wanted_rows(slots, {slot.name: self._outputs.view(slot.name, actual) for slot in slots}, rows)

    def close(self) -> None:
        """Free the graph."""
        if self._graph is not None:
            self._graph.close()

    def _attend(self, break_: Break) -> Attend:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            given = [self._crossing.keep(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v))]
            out = self._crossing.buffer(_OUT, q.shape[0], (q.shape[1], v.shape[2]), q)

            def eager() -> None:
                if self._plan is not None:
                    count = self._real
                    out[:count].copy_(self._plan.attend(layer, *(tensor[:count] for tensor in given)))

            break_(eager)
            return out

        return attend
