"""`UndoLog`: what a recording overwrote, to be put back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider_backends.tape.operators import Operator, written_by

__all__ = ["UndoLog"]


class UndoLog:
    """Remembers memory before it is written, and puts it back, newest first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def save(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Remember what a call of ``func`` is about to write."""
        if func is torch.ops.aten.index_copy_.default and not kwargs:
            # How caches are written: the rows alone are kept, not the whole memory.
            into, dim, index, _ = args
            assert isinstance(into, Tensor)
            assert isinstance(dim, int)
            assert isinstance(index, Tensor)
            self._keep_rows(into, dim, index.clone())
            return
        for tensor in written_by(func, args, kwargs).tensors:
            self._keep(tensor)

    def put_back(self) -> None:
        """Restore everything; what is remembered is then forgotten."""
        for step in reversed(self._steps):
            step()
        self._steps.clear()

    def _keep(self, tensor: Tensor) -> None:
        before = tensor.clone()
        self._steps.append(lambda: tensor.copy_(before))

    def _keep_rows(self, into: Tensor, dim: int, index: Tensor) -> None:
        before = into.index_select(dim, index)
        self._steps.append(lambda: into.index_copy_(dim, index, before))
