"""Are shared weights the very ones in use?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["follows_weight"]


def follows_weight(weight: Tensor, row: int, use: Callable[[], Tensor]) -> bool:
    """Whether what ``use`` gives changes with row ``row`` of ``weight``; the row is restored afterwards."""
    kept, before = weight[row].clone(), use().clone()
    try:
        # Doubling alone would leave a row of zeros as it is.
        weight[row] = kept * 2 + 1
        return not torch.equal(use(), before)
    finally:
        weight[row] = kept
