"""`Projection`: ``x Wᵀ + b`` in the layout that is fastest where it runs; `head_logits`: the same for a shared matrix.

Measured on one CPU thread, float32, with all matrices of a 7M-parameter model read in turn, total milliseconds of a pass of
1 / 4 / 8 / 32 rows: ``functional.linear`` 2.9 / 4.2 / 5.0 / 8.5, oneDNN's blocked layout 1.6 / 1.8 / 2.4 / 5.3. A pass of
few rows is bound by reading the weights, and general matrix products rearrange them anew at every call.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider import _torch

__all__ = ["Projection", "head_logits"]

_MOST_ROWS_TRANSPOSED = 16


class Projection:
    """One linear map. On a CPU the matrix is kept in oneDNN's blocked layout only, elsewhere as it is given.

    ``weight [out, in]`` may be dropped by the caller afterwards: it is not referenced where a blocked copy was made.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._blocked = _torch.block_weight(weight) if _torch.can_block(weight) else None
        self._weight = weight if self._blocked is None else None
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Fresh ``[T, out]`` of ``x [T, in]``, which is left as it is. Device only, safe in a capture."""
        if self._blocked is not None:
            return _torch.blocked_linear(x, self._blocked, self._bias)
        assert self._weight is not None
        return functional.linear(x, self._weight, self._bias)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """Fresh ``residual + self(x)``; both ``residual [T, out]`` and ``x`` are left as they are."""
        if self._blocked is not None:
            return _torch.blocked_linear_add(x, residual, self._blocked, self._bias)
        assert self._weight is not None
        if self._bias is not None:
            return functional.linear(x, self._weight, self._bias).add_(residual)
        return torch.addmm(residual, x, self._weight.t())


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """Fresh logits ``[R, V]`` of rows ``hidden [R, H]`` under ``head [V, H]``, which others read too (a tied embedding).

    On a CPU a few rows go through the transposed product, which reads the matrix in order: 4 rows of a 4096 × 256 head take
    0.35 instead of 0.8 ms, and two rows less than one. The result may be a transposed view. Device only, safe in a capture.
    """
    rows = hidden.shape[0]
    if hidden.device.type != "cpu" or not 0 < rows <= _MOST_ROWS_TRANSPOSED:
        return functional.linear(hidden, head)
    if rows == 1:
        return torch.mm(head, hidden.repeat(2, 1).t())[:, :1].t()
    return torch.mm(head, hidden.t()).t()
