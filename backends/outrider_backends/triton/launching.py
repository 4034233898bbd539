"""The one place where Python calls Triton: `launch`, with types."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from outrider.types import AttentionSpec
from outrider_backends.triton import kernel, tiling
from outrider_backends.triton.launches import Launch

__all__ = ["launch"]

_Argument = Tensor | int | float | None


class _Grid(Protocol):
    def __call__(self, *arguments: _Argument, num_warps: int, num_stages: int, enable_fp_fusion: bool) -> object: ...


class _Kernel(Protocol):
    def __getitem__(self, grid: tuple[int, int, int]) -> _Grid: ...


_kernel = cast(
    "_Kernel",
    kernel.attend_kernel,  # pyright: ignore[reportUnknownMemberType] - a kernel has no types (see its module)
)


def launch(
    one: Launch,
    out: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    state: tuple[Tensor | None, ...],
    numbers: tuple[int, int, int, int],
    spec: AttentionSpec,
) -> None:
    """Launch `kernel.attend_kernel` on the current stream of the device of ``out``; does not synchronise.

    ``inputs`` are q, k, v and the layer's keys and values; ``state`` the batch's tensors up to tickets, and ``numbers`` row
    stride of the page table, queries, tail slots and pages, both in the kernel's order.
    """
    if out.is_cuda and torch.cuda.current_device() != out.get_device():
        with torch.cuda.device(out.get_device()):
            return _launch(one, out, inputs, state, numbers, spec)
    return _launch(one, out, inputs, state, numbers, spec)


def _launch(
    one: Launch,
    out: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    state: tuple[Tensor | None, ...],
    numbers: tuple[int, int, int, int],
    spec: AttentionSpec,
) -> None:
    q, k, v, keys, values = inputs
    _kernel[one.grid](
        out,
        *inputs,
        *state,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        *numbers,
        spec.scale,
        spec.soft_cap,
        *one.constants,
        tiling.CHUNK_KEYS,
        tiling.PROGRAMS,
        tiling.MOST_SPLITS,
        num_warps=one.tiling.warps,
        num_stages=one.tiling.stages,
        enable_fp_fusion=True,  # the default of some versions, and told aloud by the others
    )
