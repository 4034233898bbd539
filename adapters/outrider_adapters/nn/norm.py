"""Root-mean-square norms: `RmsNorm` over the last axis, `HeadNorms` over each query and key head.

On CUDA `RmsNorm` is one kernel, with the sum before it, and puts its result where it is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider import _torch
from outrider_adapters.nn.fused import fused_norm
from outrider_adapters.nn.projection import Projection

if TYPE_CHECKING:
    from outrider_adapters.nn.fused.ops import FusedNorm

__all__ = ["HeadNorms", "JoinedNorms", "RmsNorm"]


class RmsNorm:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last axis, computed in float32.

    ``weight [n]`` is kept as it is given, not copied. Allocates its result; device only, safe in a capture.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._shape = (weight.shape[-1],)
        # On a CPU torch composes rms_norm of six small operators. The same value is x·(w√n) / √(‖x‖² + n·eps), which
        # takes four; with one row per pass these calls are a tenth of the time of a small model.
        self._folded = _FoldedNorm(weight, eps) if weight.device.type == "cpu" else None
        self.fused: FusedNorm | None = fused_norm(weight, eps)
        """The kernel that does the same, where there is one."""

    def __call__(self, x: Tensor) -> Tensor:
        """The normed rows: shape, dtype and device of ``x [..., n]``, which is left as it is."""
        if self.fused is not None:
            return self.fused(x)
        if self._folded is not None:
            return self._folded(x)
        return functional.rms_norm(x, self._shape, self.weight, self.eps)

    def of_sum(self, projection: Projection, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``residual [T, n] + projection(x)`` and its norm, both fresh; ``x [T, in]`` and ``residual`` are left as they are.

        Device only, safe in a capture.
        """
        if self.fused is not None:
            # The product is nobody else's yet, so the sum may take its place.
            total = projection(x)
            return total, self.fused.add(total, residual)
        total = projection.plus(x, residual)
        return total, self(total)


class JoinedNorms:
    """Norms of several tensors, one beside the other in the last axis."""

    def __init__(self, norms: Sequence[RmsNorm]) -> None:
        self._norms = tuple(norms)
        fused = tuple(norm.fused for norm in norms if norm.fused is not None)
        self._fused = fused if len(fused) == len(self._norms) else None

    def __call__(self, *parts: Tensor) -> Tensor:
        """Fresh ``[T, sum of n]`` of ``parts``, each ``[T, n]`` of its norm; they are left as they are.

        Device only, safe in a capture.
        """
        if self._fused is None:
            return torch.cat([norm(part) for norm, part in zip(self._norms, parts, strict=True)], dim=-1)
        widths = [part.shape[-1] for part in parts]
        out = parts[0].new_empty(parts[0].shape[0], sum(widths))
        for norm, part, columns in zip(self._fused, parts, torch.split_with_sizes(out, widths, -1), strict=True):
            norm.write(part, columns)
        return out


class HeadNorms:
    """One RMS norm for all query heads and one for all key heads, applied to both in a single pass."""

    def __init__(self, q_weight: Tensor, k_weight: Tensor, num_heads: int, num_kv_heads: int, eps: float) -> None:
        """Keep ``q_weight [D]`` and ``k_weight [D]`` side by side as one ``[num_heads + num_kv_heads, D]`` tensor."""
        self.weight: Tensor = torch.cat((q_weight.expand(num_heads, -1), k_weight.expand(num_kv_heads, -1)))
        self.eps = eps
        self._shape = (q_weight.shape[-1],)
        self._folded = _FoldedNorm(self.weight, eps) if self.weight.device.type == "cpu" else None

    def __call__(self, heads: Tensor) -> Tensor:
        """The normed heads, like ``heads [T, num_heads + num_kv_heads, D]``, which is left as it is."""
        if self._folded is not None:
            return self._folded(heads)
        return functional.rms_norm(heads, self._shape, None, self.eps).mul_(self.weight)


class _FoldedNorm:
    """RMS norm in four operators: ``x / hypot(‖x‖, √(n·eps)) · (w·√n)``, in float32 whatever the dtype."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._dtype = weight.dtype
        self._compute = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self._weight = weight.to(self._compute) * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * eps), dtype=self._compute)

    def __call__(self, x: Tensor) -> Tensor:
        length = _torch.vector_norm(x, dtype=self._compute).hypot_(self._floor)
        normed = torch.div(x, length).mul_(self._weight)
        return normed if x.dtype == self._compute else normed.to(x.dtype)
