"""`Crossing`: tensors that pass from one segment of a graph to the next, in buffers that belong to the runner."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider.errors import CaptureError
from outrider.interfaces import Break
from outrider.types import RunOutside

__all__ = ["Crossing"]

_Key = tuple[str, int, tuple[int, ...], torch.dtype, torch.device]


class Crossing:
    """Buffers by name, rows, trailing shape and dtype; whoever asks for the same gets the same. New ones hold zeros.

    With ``most`` a buffer has at least that many rows and smaller graphs take leading ones, so one set serves every bucket.
    While `sealed`, no buffer is made: inside a capture it would come from the graph's own memory.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._buffers: dict[_Key, Tensor] = {}
        self.sealed: bool = False

    def buffer(self, name: str, rows: int, trailing: tuple[int, ...], like: Tensor) -> Tensor:
        """``rows`` rows of the buffer of this name and shape, with dtype and device of ``like``; a view.

        Raises:
            CaptureError: there is none and the set is sealed.
        """
        most = rows if self._most is None else max(self._most, rows)
        key = (name, most, trailing, like.dtype, like.device)
        found = self._buffers.get(key)
        if found is None:
            if self.sealed:
                raise CaptureError(
                    f"'{name}' {[rows, *trailing]} {like.dtype} crosses a break in the capture and did not in the run before "
                    "it; make the body do the same every time"
                )
            found = torch.zeros((most, *trailing), dtype=like.dtype, device=like.device)
            self._buffers[key] = found
        return found[:rows]

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of ``tensor`` in the buffer of that name."""
        return self._like(name, tensor).copy_(tensor)

    def outside(
        self,
        name: str,
        break_: Break,
        real_rows: Callable[[], int | None],
        padded: int | None = None,
        padding: float = 0.0,
    ) -> RunOutside:
        """A `RunOutside` for one run of a body: what goes in and what comes out stands in buffers of its own.

        ``real_rows``: how many leading rows are real when an eager piece is run; ``None``: it is not to be run. With
        ``padded`` only tensors of so many rows are cut to the real ones, and the other rows of a result hold ``padding``.
        """
        calls = 0

        def run_outside(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            kept = [self.keep(f"{name} {calls}, {place}", tensor) for place, tensor in enumerate(tensors)]
            out = self._like(f"{name} {calls}", tensors[0])

            def eager() -> None:
                count = real_rows()
                if count is None:
                    return
                given = [tensor[:count] if _counts(tensor, padded) else tensor for tensor in kept]
                if _counts(out, padded):
                    out[:count].copy_(function(*given))
                    out[count:].fill_(padding if out.dtype.is_floating_point else 0)
                else:
                    out.copy_(function(*given))

            break_(eager)
            return out

        return run_outside

    def pad(self, name: str, first: int, rows: int, value: float = 0.0) -> None:
        """Fill rows ``first`` to ``rows`` of every buffer of that name with ``value``."""
        for (own, *_), tensor in self._buffers.items():
            if own == name:
                tensor[first:rows].fill_(value)

    def _like(self, name: str, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return self.buffer(name, 1, (), tensor)[0]
        return self.buffer(name, tensor.shape[0], tuple(tensor.shape[1:]), tensor)

    def clear(self) -> None:
        """Let every buffer go."""
        self._buffers.clear()


def _counts(tensor: Tensor, rows: int | None) -> bool:
    return rows is not None and tensor.dim() > 0 and tensor.shape[0] == rows
