"""What goes into a transformer stack and what comes out of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from attrs import frozen
from torch import Tensor

from outrider.types.taps import HiddenTap

__all__ = ["Attend", "DraftOutput", "StackInputs", "StackOutput"]


class Attend(Protocol):
    """Attention of one layer over cached and new keys, supplied by the runner."""

    @abstractmethod
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention output ``[T, num_heads, head_dim]`` of layer ``layer``.

        ``q [T, num_heads, head_dim]``, ``k`` and ``v [T, num_kv_heads, head_dim]``, all rotated already. Writes k
        and v to the cache first. The result may be a view of a buffer that the next call overwrites.
        """
        ...


@frozen(eq=False)
class StackInputs:
    """Everything a stack needs beside its input rows.

    ``positions``: ``[T]`` int64, or ``[3, T]`` where `PositionScheme.axes` is 3. ``taps``: wanted, in order.
    ``attend``: called exactly once for each layer. ``lengths``: ``[T]`` int64, the length of the sequence each
    token was encoded with (prompt length in prefill, position + 1 afterwards), only where
    `PositionScheme.needs_lengths` asks for it.
    """

    positions: Tensor
    attend: Attend
    taps: tuple[HiddenTap, ...] = ()
    lengths: Tensor | None = None


@frozen(eq=False)
class StackOutput:
    """``hidden``: ``[T, H]`` after the final norm; ``taps``: one ``[T, H]`` per tap asked, in that order."""

    hidden: Tensor
    taps: tuple[Tensor, ...] = ()


@frozen(eq=False)
class DraftOutput:
    """``hidden``: ``[T, H]``, the input of the draft's head; ``state``: ``[T, width]``, what the next step is fed.

    ``state`` is ``None`` exactly when `DraftSpec.state` is.
    """

    hidden: Tensor
    state: Tensor | None
