"""Small bodies for tests of runners, whose right outputs are plain to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import define
from torch import Tensor

from outrider.types import Axis, BodyCalls, BufferSlot

__all__ = ["Body", "OutsideBody", "X", "read"]

X = BufferSlot("x", Axis.TOKENS, (2,), torch.float32)


@define
class Body:
    """Doubles rows twice, once by attention that doubles; ``extra`` is what else it does with them."""

    extra: Callable[[Tensor], Tensor] = torch.neg
    outputs: tuple[BufferSlot, ...] = (X,)
    inputs: tuple[BufferSlot, ...] = (X,)
    calls: int = 0

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        self.calls += 1
        x = buffers["x"]
        return {"x": self.extra(_heads(calls, x * 2))}


@define
class OutsideBody:
    """Hands rows to ``first`` and ``second`` outside of any graph, and uses both results after both were run."""

    first: Callable[[Tensor], Tensor]
    second: Callable[[Tensor, Tensor], Tensor]
    outputs: tuple[BufferSlot, ...] = (X,)
    inputs: tuple[BufferSlot, ...] = (X,)
    calls: int = 0

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        self.calls += 1
        x = buffers["x"]
        scale = torch.arange(1, 6, device=x.device, dtype=x.dtype)  # five numbers, whatever the rows
        one = calls.outside(self.first, x + 1)
        two = calls.outside(self.second, _heads(calls, x * 3), scale)
        return {"x": one * 2 + two}


def _heads(calls: BodyCalls, x: Tensor) -> Tensor:
    """Attention with one head, as graphs in segments must know its shape."""
    return calls.attend(0, x[:, None], x[:, None], x[:, None])[:, 0]


def read(x: Tensor) -> Tensor:
    """What no graph can hold: a value is read on the host."""
    return x * x.sum().item()
