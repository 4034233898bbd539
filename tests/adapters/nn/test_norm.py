"""RMS norms against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider_adapters.nn import HeadNorms, RmsNorm


def defined(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def rows(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)],
)
def test_rms_norm_is_the_definition_rounded_once(dtype: torch.dtype, tolerance: float, scale: float) -> None:
    x, weight = (rows(torch.float32, 5, 48) * scale).to(dtype), rows(dtype, 48)
    before = x.clone()
    found = RmsNorm(weight, 1e-6)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), defined(x, weight, 1e-6), atol=1e-7, rtol=tolerance)
    assert torch.equal(x, before)


def test_the_epsilon_and_the_weight_matter() -> None:
    x, weight = rows(torch.float32, 2, 16) * 1e-3, rows(torch.float32, 16)
    assert not torch.allclose(RmsNorm(weight, 1e-5)(x), RmsNorm(weight, 1e-7)(x), rtol=1e-2)
    assert not torch.allclose(RmsNorm(weight, 1e-5)(x), RmsNorm(-weight, 1e-5)(x), rtol=1e-2)


def test_a_row_of_zeros_stays_zero_and_one_of_nan_stays_alone() -> None:
    x = rows(torch.float32, 3, 8)
    x[0], x[1] = 0.0, torch.nan
    weight = rows(torch.float32, 8)
    found = RmsNorm(weight, 1e-6)(x)
    assert torch.equal(found[0], torch.zeros(8))
    assert bool(found[1].isnan().all())
    torch.testing.assert_close(found[2].double(), defined(x[2], weight, 1e-6), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_norms_norm_queries_and_keys_with_their_own_weight(dtype: torch.dtype) -> None:
    q_weight, k_weight = rows(dtype, 8), rows(dtype, 8) + 1
    heads = rows(dtype, 4, 5, 8)
    found = HeadNorms(q_weight, k_weight, 3, 2, 1e-6)(heads)
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    for first, last, weight in ((0, 3, q_weight), (3, 5, k_weight)):
        expected = defined(heads[:, first:last], weight, 1e-6)
        torch.testing.assert_close(found[:, first:last].double(), expected, atol=1e-6, rtol=tolerance)
