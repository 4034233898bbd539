"""`MediaGraph`: a body of media at one number of items, with its buffers and its graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.graphs.buffers import BufferSet
from outrider.graphs.capturing import Capturer
from outrider.graphs.crossing import Crossing
from outrider.graphs.media import media_calls
from outrider.graphs.results import check_outputs
from outrider.interfaces import Break, Captured, GraphBody
from outrider.types import Phase, PhaseShape, Refused

__all__ = ["MediaGraph"]


class MediaGraph:
    """A body captured for calls of exactly ``size``; use `capture` to make one.

    Outputs stand in buffers outside the graph's memory, so no other graph overwrites them.
    """

    def __init__(self, body: GraphBody, size: PhaseShape, device: torch.device, *, poison: bool = False) -> None:
        """Allocate. ``poison``: outputs hold NaN and huge numbers before every replay; there are no padding rows."""
        self._body = body
        self._size = size
        self._device = device
        self._poison = poison
        self._inputs = BufferSet(body.inputs, size, device)
        self._outputs = BufferSet(body.outputs, size, device)
        self._crossing = Crossing()
        self._graph: Captured | None = None

    def capture(self, capturer: Capturer, phase: Phase, by: str) -> Refused | None:
        """Capture; ``None`` when it is done.

        Raises:
            CaptureError: the body cannot be captured.
            ConformanceError: its outputs are not what it declares.
        """
        buffers, items = self._inputs.tensors, self._size.requests
        running = False
        warmed = False

        def work(break_: Break) -> Mapping[str, Tensor]:
            nonlocal warmed
            self._crossing.sealed, warmed = warmed, True
            outside = self._crossing.outside(phase.value, break_, lambda: items if running else None)
            outputs = self._body(buffers, media_calls(outside))
            check_outputs(self._body.outputs, outputs, self._size, f"{phase.value} at {self._size}")
            for name, own in self._outputs.tensors.items():
                own.copy_(outputs[name])
            return {}

        made = capturer.capture(phase, by, str(self._size), work, buffers, device=self._device, vary=self._inputs.vary)
        running = True
        if isinstance(made, Refused):
            return made
        self._graph = made
        return None

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs for ``inputs``: the graph's buffers.

        Raises:
            GraphError: ``inputs`` do not fit the buffers.
        """
        assert self._graph is not None, "capture comes first"
        self._inputs.fill(inputs, self._size)
        if self._poison:
            self._outputs.spoil()
        self._graph.replay()
        return dict(self._outputs.tensors)

    def close(self) -> None:
        """Free the graph."""
        if self._graph is not None:
            self._graph.close()
