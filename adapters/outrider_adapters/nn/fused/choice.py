"""Which tensors have fused kernels; Triton is imported when the first one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider import _triton

if TYPE_CHECKING:
    from outrider_adapters.nn.fused.ops import FusedGate, FusedHeads, FusedNorm, GateKind

__all__ = ["available", "fused_gate", "fused_heads", "fused_norm", "serves"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def available() -> bool:
    """Whether Triton is installed, with what it builds its launchers with: a C compiler and Python's headers."""
    return _triton.missing() is None


def serves(weight: Tensor) -> bool:
    """Whether what is computed with ``weight`` has fused kernels: by its device and dtype, and `available`."""
    return weight.device.type == "cuda" and weight.dtype in _DTYPES and available()


def fused_norm(weight: Tensor, eps: float) -> FusedNorm | None:
    """The fused RMS norm with ``weight [n]``, which is kept; ``None`` where torch's operators are to be used."""
    if not serves(weight):
        return None
    from outrider_adapters.nn.fused.ops import FusedNorm

    return FusedNorm(weight, eps)


def fused_heads(
    qkv_weight: Tensor, num_heads: int, num_kv_heads: int, head_dim: int, norm: tuple[Tensor, float] | None
) -> FusedHeads | None:
    """The fused split, norm and rotation of heads projected with ``qkv_weight``; ``None`` as for `fused_norm`.

    ``norm``: the weight ``[num_heads + num_kv_heads, head_dim]`` and epsilon of norms over queries and keys.
    """
    if not serves(qkv_weight):
        return None
    from outrider_adapters.nn.fused.ops import FusedHeads

    return FusedHeads(num_heads, num_kv_heads, head_dim, norm)


def fused_gate(weight: Tensor, kind: GateKind | None) -> FusedGate | None:
    """The fused gate on what ``weight`` projects; ``None`` as for `fused_norm`, and where no ``kind`` is it."""
    if kind is None or not serves(weight):
        return None
    from outrider_adapters.nn.fused.ops import FusedGate

    return FusedGate(kind)
