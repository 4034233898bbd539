"""Are shared weights the very ones in use?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["follows_weight", "monotone"]


def follows_weight(weight: Tensor, row: int, use: Callable[[], Tensor]) -> bool:
    """Whether what ``use`` gives changes with row ``row`` of ``weight``; the row is restored afterwards."""
    kept, before = weight[row].clone(), use().clone()
    try:
        # Doubling alone would leave a row of zeros as it is.
        weight[row] = kept * 2 + 1
        return not torch.equal(use(), before)
    finally:
        weight[row] = kept


def monotone(plain: Tensor, logits: Tensor) -> bool:
    """Whether ``logits [R, V]`` rise with ``plain [R, V]`` in every row, as after a soft cap or a positive scale."""
    order = plain.float().argsort(dim=-1)
    steps = logits.float().gather(-1, order).diff(dim=-1)
    slack = 1e-3 * logits.float().abs().max()
    return bool((steps >= -slack).all())
