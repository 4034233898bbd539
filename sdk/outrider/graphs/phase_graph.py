"""`PhaseGraph`: one phase at one size, with its buffers, its attention and its graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.graphs.attention import StaticAttention
from outrider.graphs.buffers import BufferSet
from outrider.graphs.capturing import Capturer
from outrider.graphs.crossing import Crossing
from outrider.graphs.results import ROWS, check_outputs, output_slots, wanted_rows
from outrider.interfaces import AttnPlanner, Break, Captured, GraphBody
from outrider.types import AttnBatch, Axis, BodyCalls, BufferSlot, CaptureHiddenMode, Phase, PhaseShape, Refused

__all__ = ["PhaseGraph"]


class PhaseGraph:
    """A body captured with its attention for calls of up to ``key``; use `capture` to make one.

    The plan is refreshed inside the graph, so a replay sees the lengths, pages and masks that were filled in before it. The
    capture itself runs on padding alone: nothing that is read is written. Outputs stand in buffers outside the graph's
    memory, so no other graph overwrites them.
    """

    def __init__(
        self, phase: Phase, body: GraphBody, key: PhaseShape, planner: AttnPlanner, *, poison: bool = False
    ) -> None:
        """Allocate. ``poison``: padding rows hold NaN and huge numbers, and so do outputs before every replay.

        Raises:
            GraphError: the size cannot be captured with its attention.
        """
        self.key = key
        self._phase = phase
        self._body = body
        self._planner = planner
        self._poison = poison
        device = planner.device
        self._buffers = BufferSet(body.inputs, key, device, poison=poison)
        # Never poisoned: an index must stay in range, whatever it points to.
        chosen = () if key.hidden is CaptureHiddenMode.FULL else (BufferSlot(ROWS, Axis.REQUESTS, (), torch.int64),)
        self._rows = BufferSet(chosen, key, device)
        self._attention = StaticAttention(key, planner.page_size, device)
        self._crossing = Crossing()
        self._made = output_slots(body.outputs, key.hidden)
        self._outputs = BufferSet(self._made, key, device)
        self._graph: Captured | None = None

    def capture(self, capturer: Capturer, by: str) -> Refused | None:
        """Capture; ``None`` when it is done.

        Raises:
            CaptureError: the body cannot be captured.
            ConformanceError: its outputs are not what it declares.
        """
        key, what = self.key, f"{self._phase.value} at {self.key}"
        plan = self._planner.static_plan(self._attention.batch)
        buffers = self._buffers.tensors
        real = key.tokens
        running = False
        warmed = False

        def work(break_: Break) -> Mapping[str, Tensor]:
            nonlocal warmed
            self._crossing.sealed, warmed = warmed, True
            plan.refresh()
            outside = self._crossing.outside(self._phase.value, break_, lambda: real if running else None)
            outputs = self._body(buffers, BodyCalls(plan.attend, outside))
            check_outputs(self._body.outputs, outputs, key, what)
            chosen = wanted_rows(self._body.outputs, outputs, self._rows.tensors.get(ROWS))
            for name, own in self._outputs.tensors.items():
                own.copy_(chosen[name])
            return {}

        def vary() -> None:
            self._buffers.vary()
            self._attention.vary()

        inputs = {**buffers, **self._rows.tensors, **self._attention.tensors}
        made = capturer.capture(self._phase, by, str(key), work, inputs, device=self._planner.device, vary=vary)
        running = True
        if isinstance(made, Refused):
            return made
        self._graph = made
        return None

    def run(
        self, inputs: Mapping[str, Tensor], batch: AttnBatch, actual: PhaseShape, rows: Tensor | None
    ) -> dict[str, Tensor]:
        """The real rows of the outputs for ``inputs`` and ``batch``, ``actual`` in size: views of the graph's buffers.

        Raises:
            GraphError: ``inputs`` or ``batch`` do not fit the buffers.
        """
        assert self._graph is not None, "capture comes first"
        self._buffers.fill(inputs, actual)
        self._attention.fill(batch)
        if self.key.hidden is not CaptureHiddenMode.FULL:
            assert rows is not None, "a call for all rows is not admitted"
            self._rows.fill({ROWS: rows}, actual)
            rows = None
        if self._poison:
            self._outputs.spoil()
        self._graph.replay()
        outputs = {slot.name: self._outputs.view(slot.name, actual) for slot in self._made}
        return wanted_rows(self._made, outputs, rows)

    def close(self) -> None:
        """Free the graph."""
        if self._graph is not None:
            self._graph.close()
