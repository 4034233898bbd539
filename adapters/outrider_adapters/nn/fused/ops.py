"""The kernels as typed callables. Importing this imports Triton.

All run on the device alone. They are safe in a capture once they have run outside of one: the first run of a width and dtype
compiles its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

import torch
from torch import Tensor

from outrider._torch import on_device_of
from outrider_adapters.nn.fused import _kernels

__all__ = ["FusedGate", "FusedHeads", "FusedNorm", "GateKind"]

GateKind = Literal["silu", "gelu", "gelu_tanh", "quick_gelu"]
"""The activations that have a kernel; ``gelu_tanh`` is the approximation with a tanh."""

_Launch = Callable[..., None]
_Kernel = Mapping[tuple[int, ...], _Launch]
"""A Triton kernel by the sizes of its grid."""

_RMS_NORM = cast("_Kernel", _kernels.rms_norm)
_ADD_RMS_NORM = cast("_Kernel", _kernels.add_rms_norm)
_SPLIT_HEADS = cast("_Kernel", _kernels.split_heads)
_GATE = cast("_Kernel", _kernels.gate)

_GATE_BLOCK = 1024
_PER_THREAD = 8
"""Elements: 16 bytes of a 16-bit dtype, the widest load there is."""


class FusedNorm:
    """RMS norm of rows, alone or after a sum, in one kernel; see `RmsNorm`."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """``weight [n]`` is kept, not copied."""
        self._weight = weight
        self._width = weight.shape[-1]
        block = _power_of_two(self._width)
        self._sizes = (self._width, eps, block)
        self._warps = min(max(block // (32 * _PER_THREAD), 1), 32)

    def __call__(self, x: Tensor) -> Tensor:
        """Fresh normed rows of ``x [..., n]``, contiguous; ``x`` is left as it is."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.write(x.reshape(-1, self._width), out.view(-1, self._width))
        return out

    def write(self, x: Tensor, out: Tensor) -> None:
        """Write the normed rows of ``x [T, n]`` to ``out [T, n]``, whose rows, like those of ``x``, may lie apart."""
        if x.stride(1) != 1:
            x = x.contiguous()
        strides = (x.stride(0), out.stride(0))
        _run(_RMS_NORM, (x.shape[0],), self._warps, x, self._weight, out, *strides, *self._sizes)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add ``residual [T, n]`` to the contiguous ``x [T, n]`` *in place*; fresh normed rows of the sum.

        The sum is rounded to the dtype of ``x`` before it is normed: bit for bit the norm of what ``x`` then holds.
        """
        out = torch.empty_like(x)
        tensors = (x, residual, self._weight, out)
        _run(_ADD_RMS_NORM, (x.shape[0],), self._warps, *tensors, residual.stride(0), *self._sizes)
        return out


class FusedHeads:
    """Queries, keys and values out of their joint projection, queries and keys normed and rotated, in one kernel."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, norm: tuple[Tensor, float] | None) -> None:
        """``norm``: weight ``[num_heads + num_kv_heads, head_dim]`` and epsilon of RMS norms over each query and key."""
        self._counts = (num_heads, num_kv_heads, head_dim)
        self._sizes = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
        self._all_heads = num_heads + 2 * num_kv_heads
        self._weight: Tensor | None = None if norm is None else norm[0]
        self._eps = 0.0 if norm is None else norm[1]
        self._block = _power_of_two(head_dim)

    def __call__(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fresh contiguous q ``[T, num_heads, D]``, k and v ``[T, num_kv_heads, D]`` of contiguous ``qkv [T, heads · D]``.

        ``cos`` and ``sin`` (signed, of equal strides) ``[T, 1, rotary_dim]`` as of `Rope.rotation`.
        """
        rows, half = qkv.shape[0], cos.shape[-1] // 2
        num_heads, num_kv_heads, head_dim = self._counts
        out = torch.empty(qkv.numel(), dtype=qkv.dtype, device=qkv.device)
        tensors = (qkv, cos, sin, self._weight, out)
        blocks = (self._block, _power_of_two(half), _power_of_two(max(head_dim - 2 * half, 1)))
        sizes = (num_heads, num_kv_heads, head_dim, half, self._eps, *blocks)
        _run(_SPLIT_HEADS, (rows, self._all_heads), 1, *tensors, cos.stride(0), cos.stride(2), *sizes)
        q, k, v = torch.split_with_sizes(out, [rows * size for size in self._sizes])
        kv_shape = (rows, num_kv_heads, head_dim)
        return q.view(rows, num_heads, head_dim), k.view(kv_shape), v.view(kv_shape)


class FusedGate:
    """``act(gate) · up`` in one kernel."""

    def __init__(self, kind: GateKind) -> None:
        self._kind = kind

    def __call__(self, both: Tensor) -> Tensor:
        """Fresh ``[T, n]`` of contiguous ``both [T, 2n]``, the gate's half first; ``both`` is left as it is."""
        rows, width = both.shape[0], both.shape[1] // 2
        out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
        _run(_GATE, (rows, -(-width // _GATE_BLOCK)), 4, both, out, width, self._kind, _GATE_BLOCK)
        return out


def _run(kernel: _Kernel, grid: tuple[int, ...], num_warps: int, first: Tensor, *others: object) -> None:
    with on_device_of(first):
        # Triton's releases differ in whether they fuse products and sums unless told.
        kernel[grid](first, *others, num_warps=num_warps, enable_fp_fusion=True)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
