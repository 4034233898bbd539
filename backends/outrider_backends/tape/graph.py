"""`TapeGraph`: one phase at one size, with its buffers, its attention and its tape."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from outrider.errors import ConformanceError, Problems
from outrider.graphs import BufferSet, StaticAttention, rows_of, shape_of
from outrider.interfaces import AttnPlanner, GraphBody
from outrider.types import AttnBatch, Phase, PhaseShape
from outrider_backends.tape.pool import TapePool
from outrider_backends.tape.tape import Tape

__all__ = ["TapeGraph"]


class TapeGraph:
    """A body captured for calls of up to ``key``.

    The plan is refreshed inside the tape, so a replay sees the lengths, pages and masks that were filled in before it. The
    capture itself runs on padding alone: nothing that is read is written.
    """

    def __init__(
        self, phase: Phase, body: GraphBody, key: PhaseShape, planner: AttnPlanner, *, poison: bool = False
    ) -> None:
        """Allocate and capture. ``poison``: padding rows hold NaN and huge numbers.

        Raises:
            CaptureError: the body cannot be captured.
            ConformanceError: its outputs are not what it declares.
        """
        self.key = key
        # Both are named by their ids in the runner; they must not be replaced by others of the same id.
        self._keeps = (body, planner)
        device = planner.device
        self._buffers = BufferSet(body.inputs, key, device, poison=poison)
        self._attention = StaticAttention(key, planner.page_size, device)
        plan = planner.static_plan(self._attention.batch)
        self._slots = body.outputs

        def whole() -> Mapping[str, Tensor]:
            plan.refresh()
            return body(self._buffers.tensors, plan.attend)

        def vary() -> None:
            self._buffers.vary()
            self._attention.vary()

        inputs = {**self._buffers.tensors, **self._attention.tensors}
        what = f"{phase.value} at {key.tokens} tokens of {key.requests} requests"
        self.tape: Tape = Tape.capture(whole, inputs, device=device, what=what, vary=vary)
        self._check_outputs(what)

    def run(
        self, inputs: Mapping[str, Tensor], batch: AttnBatch, actual: PhaseShape, pool: TapePool
    ) -> dict[str, Tensor]:
        """The real rows of the outputs for ``inputs`` and ``batch``, ``actual`` in size: views of the tape's memory.

        Raises:
            GraphError: ``inputs`` or ``batch`` do not fit the buffers.
        """
        self._buffers.fill(inputs, actual)
        self._attention.fill(batch)
        pool.replay(self.tape)
        outputs = self.tape.outputs
        return {slot.name: rows_of(slot, outputs[slot.name], actual) for slot in self._slots}

    def _check_outputs(self, what: str) -> None:
        outputs = self.tape.outputs
        with Problems(f"outputs of {what} are not what the body declares", ConformanceError) as problems:
            for name in outputs.keys() - {slot.name for slot in self._slots}:
                problems.add(f"'{name}' is returned and not declared; declare it")
            for slot in self._slots:
                if slot.name not in outputs:
                    problems.add(f"'{slot.name}' is declared and not returned; returned are {', '.join(outputs)}")
                    continue
                found, shape = outputs[slot.name], shape_of(slot, self.key)
                if found.shape != shape or found.dtype != slot.dtype:
                    problems.add(
                        f"'{slot.name}' is {list(found.shape)} {found.dtype}, declared is {list(shape)} {slot.dtype}"
                    )
