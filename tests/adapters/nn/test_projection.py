"""Linear maps against float64 arithmetic at every row count around the change of method."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider_adapters.nn import GatedMlp, Projection, head_logits

ROW_COUNTS = (0, 1, 2, 3, 8, 9, 16, 17, 40)


def values(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.einsum("ti,oi->to", x.double(), weight.double())
    return (out if bias is None else out + bias.double()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_projection_is_the_product_whatever_the_rows(rows: int, biased: bool, dtype: torch.dtype) -> None:
    weight, x, residual = (values(*s, seed=n).to(dtype) for n, s in enumerate(((13, 24), (rows, 24), (rows, 13))))
    bias = values(13, seed=4).to(dtype) if biased else None
    before = (x.clone(), residual.clone())
    projection = Projection(weight, bias)
    expected = product(x, weight, bias)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(projection(x), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(projection.plus(x, residual), expected + residual, atol=tolerance, rtol=2 * tolerance)
    assert projection(x).is_contiguous()
    assert projection.plus(x, residual).is_contiguous()
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_a_row_does_not_depend_on_its_neighbours(rows: int) -> None:
    weight, x = values(13, 24, seed=0), values(rows, 24, seed=1)
    alone = [Projection(weight)(x[row : row + 1]) for row in range(rows)]
    torch.testing.assert_close(Projection(weight)(x), torch.cat([weight.new_empty(0, 13), *alone]))
    poisoned = torch.cat([x, x.new_full((1, 24), float("nan"))])
    torch.testing.assert_close(Projection(weight)(poisoned)[:rows], Projection(weight)(x))


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_head_logits_are_the_product(rows: int) -> None:
    head, hidden = values(31, 24, seed=0), values(rows, 24, seed=1)
    torch.testing.assert_close(head_logits(hidden, head), product(hidden, head, None), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_feed_forward_keeps_its_rows(rows: int, with_residual: bool, biased: bool) -> None:
    gate_up, down, x = values(12, 24, seed=0), values(24, 6, seed=1), values(rows, 24, seed=2)
    biases = (values(12, seed=3), values(24, seed=4)) if biased else (None, None)
    residual = values(rows, 24, seed=5) if with_residual else None
    gate, up = product(x, gate_up, biases[0]).chunk(2, dim=1)
    expected = product(torch.relu(gate) * up, down, biases[1])
    found = GatedMlp(torch.relu, gate_up, down, *biases).forward(x, residual)
    torch.testing.assert_close(found, expected if residual is None else expected + residual, atol=1e-5, rtol=1e-4)
