"""Rows of a weight, as a head cut to a part of the vocabulary needs them."""

from __future__ import annotations

from torch import Tensor

__all__ = ["select_rows"]


def select_rows(weight: Tensor, ids: Tensor) -> Tensor:
    """A copy ``[ids, H]`` of rows ``ids [n]`` int64 of ``weight [V, H]``, laid out in memory as ``weight`` is.

    Weights may lie column by column, which makes a product with few rows faster on a CPU; a plain selection would lose it.
    """
    if weight.is_contiguous():
        return weight.index_select(0, ids)
    return weight.t().index_select(1, ids).t()
