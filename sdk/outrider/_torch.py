"""The corners of torch whose types are missing or partial, wrapped once with exact types."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

__all__ = [
    "block_weight",
    "blocked_linear",
    "blocked_linear_add",
    "can_block",
    "float_rows",
    "int_rows",
    "new_event",
    "vector_norm",
]

_vector_norm = cast(
    "Callable[..., Tensor]",
    torch.linalg.vector_norm,  # pyright: ignore[reportUnknownMemberType] - torch.linalg is built without annotations
)


def vector_norm(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Euclidean length ``[..., 1]`` of the last axis of ``x``, accumulated and returned in ``dtype``.

    Allocates its result; device only, safe in a capture.
    """
    return _vector_norm(x, 2, -1, True, dtype=dtype)


def int_rows(x: Tensor) -> list[list[int]]:
    """The rows of an integer matrix ``[R, C]`` as Python ints; synchronises where ``x`` is on a device."""
    return cast("list[list[int]]", x.tolist())  # pyright: ignore[reportUnknownMemberType] - torch annotates a bare list


def new_event() -> torch.cuda.Event:
    """A CUDA event, not yet recorded."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor unannotated


def float_rows(x: Tensor) -> list[list[float]]:
    """The rows of a real matrix ``[R, C]`` as Python floats; synchronises where ``x`` is on a device."""
    return cast("list[list[float]]", x.tolist())  # pyright: ignore[reportUnknownMemberType] - torch annotates a bare list


# oneDNN's blocked layout: the operators that torch's own compiler uses for frozen weights on a CPU. They have no
# annotations, and no public name of their own.
_reorder = cast(
    "Callable[[Tensor], Tensor]",
    torch.ops.mkldnn._reorder_linear_weight,  # pyright: ignore[reportUnknownMemberType, reportPrivateUsage]
)
_pointwise = torch.ops.mkldnn._linear_pointwise  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportPrivateUsage]
_linear = cast("Callable[[Tensor, Tensor, Tensor | None, str, list[float], str], Tensor]", _pointwise)
_linear_binary = cast(
    "Callable[[Tensor, Tensor, Tensor, Tensor | None, str], Tensor]",
    _pointwise.binary,  # pyright: ignore[reportUnknownMemberType]
)


def can_block(weight: Tensor) -> bool:
    """Whether `block_weight` serves ``weight``: a float32 matrix on a CPU, in a torch that was built with oneDNN."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.dim() == 2
    return on_cpu and weight.numel() > 0 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch annotates no return


def block_weight(weight: Tensor) -> Tensor:
    """A copy of ``weight [out, in]`` in oneDNN's blocked layout: an opaque tensor of the same shape."""
    return _reorder(weight.contiguous())


def blocked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Fresh ``x Wᵀ + b`` ``[T, out]`` for a weight from `block_weight`."""
    return _linear(x, weight, bias, "none", [], "")


def blocked_linear_add(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Fresh ``x Wᵀ + b + other`` ``[T, out]``, one operator."""
    return _linear_binary(x, other, weight, bias, "add")
