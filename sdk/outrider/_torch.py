"""The corners of torch whose types are missing or partial, wrapped once with exact types."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

__all__ = [
    "GraphPool",
    "copy_all",
    "float_rows",
    "int_rows",
    "new_event",
    "new_stream",
    "on_device_of",
    "staged",
    "uploaded",
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


def copy_all(into: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each of ``sources`` to its place in ``into``, of the same shape: on CUDA in one kernel where all are contiguous
    and of one dtype. Device only, safe in a capture.
    """
    torch._foreach_copy_(into, sources)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage] - no public name


_DTYPES = {"q": torch.int64, "f": torch.float32}


def staged(values: array[int] | array[float], device: torch.device) -> Tensor:
    """``values``, an array of ``q`` (int64) or ``f`` (float32) and not empty, as a vector on the host, to be copied to
    ``device`` without waiting. For a CPU it is the array's own memory, which may then not grow.
    """
    host = torch.frombuffer(values, dtype=_DTYPES[values.typecode])
    # Fresh pinned memory each time: its allocator hands it out again only after the copies of it are done.
    return host.pin_memory() if device.type == "cuda" else host


def uploaded(values: array[int] | array[float], device: torch.device) -> Tensor:
    """As `staged`, and on ``device``: one copy in stream order, without synchronisation."""
    return staged(values, device).to(device, non_blocking=True)


def int_rows(x: Tensor) -> list[list[int]]:
    """The rows of an integer matrix ``[R, C]`` as Python ints; synchronises where ``x`` is on a device."""
    return cast("list[list[int]]", x.tolist())  # pyright: ignore[reportUnknownMemberType] - torch annotates a bare list


def new_event() -> torch.cuda.Event:
    """A CUDA event, not yet recorded."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor unannotated


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """A new CUDA stream on ``device``."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its constructor unannotated


class GraphPool:
    """Memory that CUDA graphs share, and how a capture into it begins."""

    def __init__(self) -> None:
        self._handle = torch.cuda.graph_pool_handle()

    def begin(self, graph: torch.cuda.CUDAGraph) -> None:
        """Begin capturing the current stream into ``graph``; work of other threads on the card goes on meanwhile."""
        graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")

    def abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture into ``graph`` that failed; the current stream, device memory and random numbers are as before.

        Where CUDA says that a capture is invalid (a host read), PyTorch leaves off in the middle: whoever allocates is still
        asked whether he captures into the pool, and the random generator expects a capture.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            device = torch.cuda.current_device()
            try:
                torch._C._cuda_endAllocateToPool(device, self._handle)  # pyright: ignore[reportPrivateUsage] - no public name
            except RuntimeError:
                pass  # it got that far
            else:
                torch._C._cuda_releasePool(device, self._handle)  # pyright: ignore[reportPrivateUsage] - no public name
            # A capture that succeeds leaves the generator as it should be.
            empty = torch.cuda.CUDAGraph()
            empty.capture_begin(capture_error_mode="thread_local")
            empty.capture_end()
            empty.reset()
        graph.reset()


def on_device_of(x: Tensor) -> torch.cuda.device_of:
    """A context in which the CUDA device of ``x`` is the current one; nothing changes where ``x`` is on no such device."""
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]  # torch leaves its constructor unannotated


def float_rows(x: Tensor) -> list[list[float]]:
    """The rows of a real matrix ``[R, C]`` as Python floats; synchronises where ``x`` is on a device."""
    return cast("list[list[float]]", x.tolist())  # pyright: ignore[reportUnknownMemberType] - torch annotates a bare list
