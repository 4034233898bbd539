"""What a captured body gives: checked against its declaration, and handed out in buffers of the runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve
from torch import Tensor

from outrider.errors import ConformanceError, Problems
from outrider.graphs.buffers import shape_of
from outrider.types import Axis, BufferSlot, CaptureHiddenMode, PhaseShape

__all__ = ["ROWS", "check_outputs", "output_slots", "wanted_rows"]

ROWS = "rows wanted"
"""The input buffer that names one row per request where a graph gives only these."""


def output_slots(slots: Sequence[BufferSlot], mode: CaptureHiddenMode) -> tuple[BufferSlot, ...]:
    """``slots`` as a graph of ``mode`` hands them out: with LAST, what counts tokens has one row per request."""
    if mode is CaptureHiddenMode.FULL:
        return tuple(slots)
    return tuple(evolve(slot, axis=Axis.REQUESTS) if slot.axis is Axis.TOKENS else slot for slot in slots)


def wanted_rows(slots: Sequence[BufferSlot], outputs: Mapping[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
    """``outputs`` as declared by ``slots``, of those that count tokens only ``rows [B]``; ``None``: all."""
    if rows is None:
        return dict(outputs)
    return {
        slot.name: outputs[slot.name].index_select(len(slot.leading), rows)
        if slot.axis is Axis.TOKENS
        else outputs[slot.name]
        for slot in slots
    }


def check_outputs(slots: Sequence[BufferSlot], outputs: Mapping[str, Tensor], size: PhaseShape, what: str) -> None:
    """Refuse outputs that are not what the body declares.

    Raises:
        ConformanceError: names, shapes or dtypes differ; all at once.
    """
    with Problems(f"outputs of {what} are not what the body declares", ConformanceError) as problems:
        for name in outputs.keys() - {slot.name for slot in slots}:
            problems.add(f"'{name}' is returned and not declared; declare it")
        for slot in slots:
            if slot.name not in outputs:
                problems.add(f"'{slot.name}' is declared and not returned; returned are {', '.join(outputs)}")
                continue
            found, shape = outputs[slot.name], shape_of(slot, size)
            if found.shape != shape or found.dtype != slot.dtype:
                problems.add(
                    f"'{slot.name}' is {list(found.shape)} {found.dtype}, declared is {list(shape)} {slot.dtype}"
                )
