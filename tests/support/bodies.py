"""Small bodies for tests of runners, whose right outputs are plain to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import define, field
from torch import Tensor

from outrider.types import Axis, BodyCalls, BufferSlot

__all__ = ["PIXELS", "Body", "OutsideBody", "Tower", "X", "positive", "read"]

X = BufferSlot("x", Axis.TOKENS, (2,), torch.float32)

PIXELS = BufferSlot("pixels", Axis.REQUESTS, (3,), torch.float32)
ROWS = BufferSlot("rows", Axis.REQUESTS, (2, 3), torch.float32)
SCALE = BufferSlot("scale", Axis.NONE, (3,), torch.float32)


@define(eq=False)
class Tower:
    """A body of media: of an item two rows, one of them of its neighbours within the call, so that a wrong group shows.

    With ``outside`` that row is one that no graph can hold.
    """

    extra: Callable[[Tensor], Tensor] = torch.neg
    counts: tuple[int, ...] = (1, 2, 4)
    eager_because: str | None = None
    outside: bool = False
    inputs: tuple[BufferSlot, ...] = (PIXELS, SCALE)
    outputs: tuple[BufferSlot, ...] = (ROWS,)
    seen: list[int] = field(factory=list[int])

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        pixels = buffers["pixels"]
        self.seen.append(pixels.shape[0])
        others = calls.outside(positive, pixels - 1) if self.outside else pixels.mean(0).expand_as(pixels)
        return {"rows": torch.stack([self.extra(pixels * buffers["scale"]), others], dim=1)}


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


def positive(x: Tensor) -> Tensor:
    """Rows kept where positive: an index of as many places as there are."""
    out = torch.zeros_like(x)
    places = (x > 0).nonzero(as_tuple=True)
    out[places] = x[places]
    return out


def read(x: Tensor) -> Tensor:
    """What no graph can hold: a value is read on the host."""
    return x * x.sum().item()
