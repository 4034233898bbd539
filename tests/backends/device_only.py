"""A block of code in which no operator may make the host wait for the device; works on a CPU too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ASKS_THE_HOST = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default)


class DeviceOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    """Fails on operators whose result the host has to wait for."""

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        asks = func in ASKS_THE_HOST
        if func is aten.index.Tensor:
            # A boolean index has as many rows as it holds true values.
            asks = any(map(_is_boolean, cast("Sequence[object]", args[1])))
        assert not asks, f"{func} reads a value on the host"
        return func(*args, **(kwargs or {}))


def device_only() -> DeviceOnly:
    """The block: ``with device_only(): ...``."""
    return DeviceOnly()  # type: ignore[no-untyped-call]  # torch leaves TorchDispatchMode.__init__ unannotated


def _is_boolean(pick: object) -> bool:
    return isinstance(pick, Tensor) and pick.dtype is torch.bool
