"""Counting the operators that run: on a GPU each is at least one launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Operators"]

_VIEWS = frozenset(
    {"alias", "detach", "expand", "narrow", "permute", "reshape", "select", "slice", "split", "split_with_sizes"}
    | {"squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "empty", "lift_fresh", "detach_"}
)
"""These compute nothing."""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    """Counts what runs inside it, but for views and what is `left_out`. One operator over a list counts once, as it does
    on CUDA where its tensors are contiguous and of one dtype.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.ran: Counter[str] = Counter()
        self._counts = True

    @property
    def number(self) -> int:
        """Operators in all."""
        return sum(self.ran.values())

    @contextmanager
    def left_out(self) -> Generator[None]:
        """What runs inside does not count."""
        before, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = before

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Count ``func`` and run it."""
        name = func.overloadpacket.__name__
        if self._counts and name not in _VIEWS:
            self.ran[name] += 1
        return func(*args, **(kwargs or {}))
