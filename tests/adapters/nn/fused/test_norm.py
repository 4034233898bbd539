"""The fused RMS norm against the definition in float64, and against the norm and the sum apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider_adapters.nn.fused.ops import FusedNorm
from tests.adapters.nn.fused.common import (
    DTYPES,
    HERE,
    assert_rounded_once,
    assert_rows_stand_alone,
    values,
    with_dtypes,
)

pytestmark = HERE  # which is mark.gpu where there is a device

CASES = with_dtypes([1, 7, 256, 1000], usual=48)


def defined(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize(("width", "dtype"), CASES)
def test_the_norm_is_the_definition_rounded_once(width: int, dtype: torch.dtype, scale: float) -> None:
    x, weight = values(dtype, 5, width, scale=scale), values(dtype, width, seed=1)
    before = x.clone()
    found = FusedNorm(weight, 1e-5)(x)
    assert found.dtype == dtype
    assert_rounded_once(found, defined(x, weight, 1e-5))
    assert torch.equal(x, before)


def test_another_epsilon_or_weight_is_seen() -> None:
    x, weight = values(torch.float32, 2, 16, scale=1e-3), values(torch.float32, 16)
    exact = defined(x, weight, 1e-5)
    for other in (FusedNorm(weight, 2e-5), FusedNorm(weight.flip(0), 1e-5)):
        with pytest.raises(AssertionError):
            assert_rounded_once(other(x), exact)


@pytest.mark.parametrize(("width", "dtype"), CASES)
def test_the_sum_is_kept_and_normed_as_it_was_rounded(width: int, dtype: torch.dtype) -> None:
    norm = FusedNorm(values(dtype, width, seed=1), 1e-5)
    x, residual = values(dtype, 5, width, seed=2), values(dtype, 5, width, seed=3)
    before, exact = residual.clone(), x.double() + residual.double()
    found = norm.add(x, residual)
    assert_rounded_once(x, exact)
    assert torch.equal(found, norm(x))
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    weight = values(dtype, 24, seed=1)
    norm, wide = FusedNorm(weight, 1e-6), values(dtype, 4, 100)
    x = wide[:, 30:54]
    expected = norm(x.contiguous())
    assert torch.equal(norm(x), expected)
    out = torch.full_like(wide, 7.0)
    norm.write(x, out[:, 50:74])
    assert torch.equal(out[:, 50:74], expected)
    assert bool((out[:, :50] == 7.0).all())
    assert bool((out[:, 74:] == 7.0).all())
    total, apart = values(dtype, 4, 24, seed=2), values(dtype, 4, 24, seed=2)
    assert torch.equal(norm.add(total, x), norm.add(apart, x.contiguous()))
    assert torch.equal(total, apart)


def test_transposed_rows_and_more_axes_are_normed_alike() -> None:
    norm = FusedNorm(values(torch.float32, 6, seed=1), 1e-6)
    x = values(torch.float32, 6, 8).t()
    assert torch.equal(norm(x), norm(x.contiguous()))
    assert torch.equal(norm(x.reshape(2, 4, 6)), norm(x.contiguous()).view(2, 4, 6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    norm, x, residual = FusedNorm(values(dtype, 96), 1e-6), values(dtype, 7, 96, seed=1), values(dtype, 7, 96, seed=2)
    x[3] = torch.nan
    residual[4] = torch.inf
    for result in (norm(x), norm.add(x.clone(), residual)):
        assert bool(result[3].isnan().all())
        assert bool(result[[0, 1, 2, 5, 6]].isfinite().all())
    x[3], residual[4] = 0.0, 0.0
    assert_rows_stand_alone(lambda first, last: norm(x[first:last]), 7)
    assert_rows_stand_alone(lambda first, last: norm.add(x[first:last].clone(), residual[first:last]), 7)
