"""What goes into a transformer stack and what comes out of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from attrs import frozen
from torch import Tensor

from outrider.types.taps import HiddenTap

__all__ = ["Attend", "BodyCalls", "DraftOutput", "RunOutside", "StackInputs", "StackOutput", "run_directly"]


class Attend(Protocol):
    """Attention of one layer over cached and new keys, supplied by the runner."""

    @abstractmethod
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention output ``[T, num_heads, head_dim]`` of layer ``layer``.

        ``q [T, num_heads, head_dim]``, ``k`` and ``v [T, num_kv_heads, head_dim]``, all rotated already. Writes k
        and v to the cache first. The result may be a view of a buffer that the next call overwrites.
        """
        ...


class RunOutside(Protocol):
    """Runs a function outside of any graph, supplied by the runner."""

    @abstractmethod
    def __call__(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """What ``function`` gives for ``tensors``: shape and dtype of the first of them.

        For what cannot be captured (a kernel that allocates by data, an operator with host code). A graph ends before it
        and another begins after it; the function must wait for nothing that only the host knows. Where the runner serves
        ragged batches it sees only real rows of tensors whose leading axis counts tokens. The result may be a buffer that
        the next pass overwrites.
        """
        ...


def run_directly(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A `RunOutside` for bodies that are run directly."""
    return function(*tensors)


@frozen(eq=False)
class BodyCalls:
    """What a runner supplies to a body: ``attend``, and ``outside`` for what the body declares as not capturable."""

    attend: Attend
    outside: RunOutside = run_directly


@frozen(eq=False)
class StackInputs:
    """Everything a stack needs beside its input rows.

    ``positions``: ``[T]`` int64, or ``[3, T]`` where `PositionScheme.axes` is 3. ``taps``: wanted, in order.
    ``attend``: called exactly once for each layer. ``lengths``: ``[T]`` int64, the length of the sequence each
    token was encoded with (prompt length in prefill, position + 1 afterwards), only where
    `PositionScheme.needs_lengths` asks for it. ``outside``: runs what no graph can hold.
    """

    positions: Tensor
    attend: Attend
    taps: tuple[HiddenTap, ...] = ()
    lengths: Tensor | None = None
    outside: RunOutside = run_directly


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
