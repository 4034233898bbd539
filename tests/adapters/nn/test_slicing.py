"""Rows cut out of a weight keep their values and the weight's layout."""

from __future__ import annotations

import torch

from outrider_adapters.nn import select_rows


def test_rows_keep_values_order_and_layout_and_are_a_copy() -> None:
    ids = torch.tensor([4, 0, 2])
    plain = torch.arange(15.0).view(5, 3)
    for weight in (plain, plain.t().contiguous().t()):
        rows = select_rows(weight, ids)
        assert rows.equal(torch.stack([plain[4], plain[0], plain[2]]))
        assert rows.is_contiguous() == weight.is_contiguous()
        assert rows.t().is_contiguous() == weight.t().is_contiguous()
        assert rows.data_ptr() != weight.data_ptr()
