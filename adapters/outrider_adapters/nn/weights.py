"""`WeightLoader`: checkpoint tensors by logical name, checked, straight into their final place."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from attrs import define
from torch import Tensor

from outrider.checkpoint import TensorReader
from outrider.errors import CheckpointError, Problems
from outrider.interfaces import LoadProgress

__all__ = ["WeightLoader"]

_READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_SHOWN = 20
"""Faults listed one by one; a wrong hidden size makes one for every tensor of the model."""


@define
class _Account:
    """What every scope of one loader shares."""

    reader: TensorReader
    device: torch.device
    dtype: torch.dtype
    progress: LoadProgress | None
    total: int
    problems: list[str]
    num_parameters: int = 0
    done: int = 0


class WeightLoader:
    """Loads tensors of a checkpoint to one device and dtype, and keeps account of faults and of what is left.

    Each tensor is copied once, from the memory-mapped file into its final place, fused parts into their slice. A fault
    (missing, wrong shape, unreadable dtype) is noted and an empty tensor is returned, so that `finish` reports all of
    them. On the device ``meta`` nothing is read: a rehearsal that finds the faults without touching the weights.
    """

    def __init__(
        self,
        reader: TensorReader,
        device: torch.device,
        dtype: torch.dtype,
        progress: LoadProgress | None = None,
        finite: bool = False,
    ) -> None:
        """``finite``: NaN and infinite weights are faults. It reads every weight once more: for drafts, whose bad weights
        show in nothing but a low acceptance; a target's show in its logits.
        """
        self._finite = finite
        self._account = _Account(reader, device, dtype, progress, len(reader.unused), [])
        self._prefixes: tuple[str, ...] = ("",)

    def scope(self, *prefixes: str) -> WeightLoader:
        """The same loader for names below any of ``prefixes``, tried in order: ``scope("model.", "")``."""
        inner = copy(self)
        inner._prefixes = tuple(outer + prefix for outer in self._prefixes for prefix in prefixes)
        return inner

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors handed out so far; a tensor used twice counts once."""
        return self._account.num_parameters

    def find(self, name: str) -> str | None:
        """Full name of ``name`` in the checkpoint, or ``None`` where it is not there."""
        return next((p + name for p in self._prefixes if self._account.reader.has(p + name)), None)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds ``name``."""
        return self.find(name) is not None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Stored shape of ``name``, or ``None`` where it is not there."""
        full = self.find(name)
        return None if full is None else self._account.reader.info(full).shape

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """A fresh tensor with the values of ``name``, which must have ``shape``; ``dtype`` instead of the model's."""
        into = self._empty(shape, dtype)
        self._fill(name, into)
        return into

    def optional(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor | None:
        """As `tensor`, or ``None`` where the checkpoint lacks ``name``."""
        return self.tensor(name, shape, dtype) if self.has(name) else None

    def fused(self, parts: Sequence[tuple[str, int]], fused_name: str, trailing: tuple[int, ...] = ()) -> Tensor:
        """A fresh ``[sum of rows, *trailing]`` tensor of ``parts`` (name, rows) one below the other.

        The checkpoint may hold the parts, or all of them already fused in this order as ``fused_name``.
        """
        into = self._empty((sum(rows for _, rows in parts), *trailing), None)
        if self.has(fused_name):
            self._fill(fused_name, into)
            return into
        first = 0
        for name, rows in parts:
            self._fill(name, into.narrow(0, first, rows))
            first += rows
        return into

    def ignore(self, *names: str) -> None:
        """Count ``names`` as used, wherever they are, without reading them."""
        for name in names:
            for prefix in self._prefixes:
                self._account.reader.ignore(prefix + name)

    def ignore_ending(self, suffix: str) -> None:
        """Count every tensor whose name ends in ``suffix`` as used, without reading it."""
        for name in self._account.reader.unused:
            if name.endswith(suffix):
                self._account.reader.ignore(name)

    def problem(self, message: str) -> None:
        """Note a fault that the caller found."""
        self._account.problems.append(message)

    def problems(self) -> tuple[str, ...]:
        """Every fault so far, and the tensors nobody used, which is a fault too."""
        found, unused = list(self._account.problems), self._account.reader.unused
        if len(found) > _SHOWN:
            found[_SHOWN:] = [f"and {len(found) - _SHOWN} more tensors that are missing or do not fit"]
        if unused:
            listed = ", ".join(f"'{name}'" for name in unused[:_SHOWN])
            more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
            verb = "tensor is" if len(unused) == 1 else "tensors are"
            found.append(
                f"{len(unused)} {verb} in the checkpoint but not used by this model: {listed}{more}; "
                "the config may describe another model, or the tensors belong to another file"
            )
        return tuple(found)

    def finish(self, title: str) -> None:
        """Report the last of the progress.

        Raises:
            CheckpointError: any fault was noted, or a tensor was not used; ``title`` comes first.
        """
        with Problems(title, CheckpointError) as problems:
            for message in self.problems():
                problems.add(message)
        account = self._account
        if account.progress is not None and account.done < account.total:
            account.progress(account.total, account.total)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self._account.dtype, device=self._account.device)

    def _fill(self, name: str, into: Tensor) -> None:
        account, full = self._account, self.find(name)
        expected = list(into.shape)
        if full is None:
            places = " or ".join(f"'{prefix}{name}'" for prefix in self._prefixes)
            account.problems.append(f"tensor {places} is missing, expected with shape {expected}")
            return
        info = account.reader.info(full)
        if list(info.shape) != expected:
            account.problems.append(f"tensor '{full}' has shape {list(info.shape)}, expected {expected}")
            account.reader.ignore(full)
            return
        if into.dtype.is_floating_point and info.dtype not in _READABLE:
            account.problems.append(
                f"tensor '{full}' is stored as {_dtype_name(info.dtype)}, expected one of "
                f"{', '.join(_dtype_name(dtype) for dtype in _READABLE)}; quantized weights are not read"
            )
            account.reader.ignore(full)
            return
        if not into.dtype.is_floating_point and info.dtype.is_floating_point:
            account.problems.append(f"tensor '{full}' is stored as {_dtype_name(info.dtype)}, expected whole numbers")
            account.reader.ignore(full)
            return
        account.num_parameters += into.numel()
        if account.device.type == "meta":
            account.reader.ignore(full)
            return
        into.copy_(account.reader.take(full))
        if self._finite and into.dtype.is_floating_point and not bool(into.isfinite().all()):
            account.problems.append(f"tensor '{full}' holds NaN or infinite values as {_dtype_name(into.dtype)}")
        account.done += 1
        if account.progress is not None:
            account.progress(account.done, account.total)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
