"""Finds operators whose value, or whose result's shape, the host must wait for; works on a CPU too."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.errors import ConformanceError

__all__ = ["forbid_host_reads"]

_aten = torch.ops.aten
_WAITING = frozenset(
    {
        _aten._local_scalar_dense.default,
        _aten._unique2.default,
        # In inference mode composite operators come as they are, not as the ones they are made of.
        _aten.argwhere.default,
        _aten.item.default,
        _aten.nonzero_numpy.default,
        _aten.where.default,
        _aten.allclose.default,
        _aten.bincount.default,
        _aten.equal.default,
        _aten.is_nonzero.default,
        _aten.masked_select.default,
        _aten.nonzero.default,
        _aten.unique_consecutive.default,
        _aten.unique_dim.default,
    }
)
_INDEXING = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default})
_REPEATING = frozenset({_aten.repeat_interleave.Tensor, _aten.repeat_interleave.self_Tensor})
# On a CPU these read the memory itself, so no operator shows.
_TO_THE_HOST = cast(
    "frozenset[Callable[..., object]]",
    frozenset({Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__repr__}),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - partly annotated
)


@contextmanager
def forbid_host_reads() -> Generator[None]:
    """A block in which no operator may make the host wait for the device; what a graph capture needs.

    Raises:
        ConformanceError: in the line that reads a value (``.item()``, ``bool()``, ``.tolist()``, ``.cpu()``), indexes by a
            boolean mask, or makes a tensor whose shape depends on values (``nonzero``, ``unique``).
    """
    operators = _Operators()  # type: ignore[no-untyped-call]  # torch leaves TorchDispatchMode.__init__ unannotated
    with operators, _Functions():
        yield


def _refuse(what: object) -> None:
    raise ConformanceError(
        f"{what} makes the host wait for the device, so the code cannot run in a round or be captured; keep the value in "
        "a tensor and its shape static (torch.where, gather, masked_fill instead of .item(), if, mask indexing)"
    )


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        if func in _WAITING:
            _refuse(func)
        if func in _REPEATING and given.get("output_size") is None:
            _refuse(f"{func} without output_size")
        if func in _INDEXING and any(map(_is_boolean, cast("Sequence[object]", args[1]))):
            _refuse(f"{func} by a boolean mask")
        return func(*args, **given)


class _Functions(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in _TO_THE_HOST:
            _refuse(func)
        return func(*args, **(kwargs or {}))


def _is_boolean(pick: object) -> bool:
    return isinstance(pick, Tensor) and pick.dtype is torch.bool
