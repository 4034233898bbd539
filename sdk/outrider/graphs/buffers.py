"""`BufferSet`: the static buffers that a captured body reads, and the one routine that fills them, whatever the phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.errors import GraphError, Problems
from outrider.types import Axis, BufferSlot, PhaseShape
from outrider.types.counts import counted

__all__ = ["BufferSet", "note_misfits", "rows_of", "shape_of", "slots_by_name"]


def rows_of(slot: BufferSlot, tensor: Tensor, actual: PhaseShape) -> Tensor:
    """The real rows of ``tensor``, which is shaped as ``slot`` says for a larger call; a view, nothing is copied."""
    count = _count(slot, actual)
    return tensor if count is None else tensor.narrow(len(slot.leading), 0, count)


def shape_of(slot: BufferSlot, call: PhaseShape) -> tuple[int, ...]:
    """The shape that a buffer of ``slot`` has in a call of this size."""
    count = _count(slot, call)
    rows = () if count is None else (count,)
    return (*slot.leading, *rows, *slot.trailing)


def slots_by_name(slots: Sequence[BufferSlot]) -> dict[str, BufferSlot]:
    """``slots`` by their names, in their order.

    Raises:
        GraphError: two slots of one name.
    """
    names = [slot.name for slot in slots]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise GraphError(f"buffers {', '.join(twice)} are declared more than once; give each a name of its own")
    return {slot.name: slot for slot in slots}


def note_misfits(
    problems: Problems,
    slots: Mapping[str, BufferSlot],
    inputs: Mapping[str, Tensor],
    actual: PhaseShape,
    devices: Mapping[str, torch.device],
) -> None:
    """Add to ``problems`` whatever of ``inputs``, for a call of ``actual``, is not as ``slots`` and ``devices`` by name say."""
    for name in inputs.keys() - slots.keys():
        problems.add(f"'{name}' was given, declared are {', '.join(slots) or 'none'}; declare it as well")
    for name, slot in slots.items():
        if name not in inputs:
            problems.add(f"'{name}' is declared but was not given; given are {', '.join(inputs) or 'none'}")
            continue
        value, shape = inputs[name], shape_of(slot, actual)
        if value.shape != shape or value.dtype != slot.dtype:
            problems.add(
                f"'{name}' is {list(value.shape)} {value.dtype}, declared is {list(shape)} {slot.dtype} "
                f"for {counted(actual.tokens, 'token')} of {counted(actual.requests, 'request')} ({slot.axis.value})"
            )
        if value.device != devices[name]:
            problems.add(f"'{name}' is on {value.device}, the call on {devices[name]}; move it before the call")


class BufferSet:
    """Every buffer of ``slots``, allocated once for calls of up to ``capacity``; fresh buffers hold padding.

    The addresses never change. Rows past the real ones always hold what `BufferSlot.padding` says, never rows of an
    earlier call. With ``poison`` they hold NaN, huge numbers or true instead, so that a test shows whether a padding row
    is read where none may be. Nothing here synchronises.

    Raises:
        GraphError: two slots of one name.
    """

    def __init__(
        self,
        slots: Sequence[BufferSlot],
        capacity: PhaseShape,
        device: torch.device,
        *,
        poison: bool = False,
        within: BufferSet | None = None,
    ) -> None:
        """``within``: a set of the same slots and a larger capacity whose leading rows are taken, instead of new memory."""
        self.capacity = capacity
        self._slots = slots_by_name(slots)
        self._padding = {slot.name: _poison(slot.dtype) if poison else slot.padding for slot in slots}
        self._tensors = {
            slot.name: torch.empty(shape_of(slot, capacity), dtype=slot.dtype, device=device)
            if within is None
            else within.view(slot.name, capacity)
            for slot in slots
        }
        self.pad()

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The buffers at full size, the very storage."""
        return self._tensors

    def spoil(self) -> None:
        """Make every row NaN, huge numbers or true."""
        for slot in self._slots.values():
            self._tensors[slot.name].fill_(_poison(slot.dtype))

    def pad(self) -> None:
        """Make every row padding."""
        for name, tensor in self._tensors.items():
            tensor.fill_(self._padding[name])

    def vary(self) -> None:
        """Make every row something that padding is not, yet valid: reals 1, integers one above padding, booleans inverted.

        What a body does must not depend on it: two captures, one on padding and one on this, must be equal.
        """
        for slot in self._slots.values():
            other = (
                1.0 if slot.dtype.is_floating_point else int(not slot.padding) if _is_bool(slot) else slot.padding + 1
            )
            self._tensors[slot.name].fill_(other)

    def fill(self, inputs: Mapping[str, Tensor], actual: PhaseShape) -> None:
        """Copy ``inputs`` into the leading rows and padding into the rest. Device only, no synchronisation.

        ``actual``: how large the call is; each input has just the rows of its slot's axis, and the dtype and device of its
        slot. Inputs may be outputs of an earlier call.

        Raises:
            GraphError: names that are missing or unknown, a wrong shape, dtype or device, or more rows than there are;
                all at once, nothing is copied.
        """
        if inputs.keys() != self._slots.keys() or not self._fits(inputs, actual):
            self._refuse(inputs, actual)
        for name, slot in self._slots.items():
            tensor, count = self._tensors[name], _count(slot, actual)
            if count is None:
                tensor.copy_(inputs[name])
                continue
            axis = len(slot.leading)
            rest = tensor.shape[axis] - count
            tensor.narrow(axis, 0, count).copy_(inputs[name])
            if rest:
                tensor.narrow(axis, count, rest).fill_(self._padding[name])

    def view(self, name: str, actual: PhaseShape) -> Tensor:
        """The real rows of buffer ``name`` in a call of ``actual``; a view.

        Raises:
            GraphError: there is no such buffer.
        """
        if name not in self._slots:
            raise GraphError(f"buffer '{name}' was asked, declared are {', '.join(self._slots) or 'none'}")
        return rows_of(self._slots[name], self._tensors[name], actual)

    def _fits(self, inputs: Mapping[str, Tensor], actual: PhaseShape) -> bool:
        if actual.tokens > self.capacity.tokens or actual.requests > self.capacity.requests:
            return False
        for name, slot in self._slots.items():
            value = inputs[name]
            if value.shape != shape_of(slot, actual) or value.dtype != slot.dtype:
                return False
            if value.device != self._tensors[name].device:
                return False
        return True

    def _refuse(self, inputs: Mapping[str, Tensor], actual: PhaseShape) -> None:
        with Problems("buffers cannot be filled", GraphError) as problems:
            for unit, asked, there in (
                ("tokens", actual.tokens, self.capacity.tokens),
                ("requests", actual.requests, self.capacity.requests),
            ):
                if asked > there:
                    problems.add(f"a call of {asked} {unit}, the buffers hold {there}; take a larger bucket")
            devices = {name: tensor.device for name, tensor in self._tensors.items()}
            note_misfits(problems, self._slots, inputs, actual, devices)


def _count(slot: BufferSlot, shape: PhaseShape) -> int | None:
    match slot.axis:
        case Axis.TOKENS:
            return shape.tokens
        case Axis.REQUESTS:
            return shape.requests
        case Axis.NONE:
            return None


def _is_bool(slot: BufferSlot) -> bool:
    return slot.dtype == torch.bool


def _poison(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max // 2
