"""Attention over a paged cache in one Triton kernel per layer, for CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider import _triton
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider_backends.triton.backend import TritonBackend

__all__ = ["create"]


def create() -> TritonBackend:
    """A new Triton backend (entry point ``outrider.attention``).

    Raises:
        ConfigurationError: Triton is not installed, or cannot build kernels.
    """
    problem = _triton.missing()
    if problem is not None:
        raise ConfigurationError(f"attention backend 'triton': {problem}, or choose the attention backend 'sdpa'")
    from outrider_backends.triton.backend import TritonBackend  # imports Triton

    return TritonBackend()
