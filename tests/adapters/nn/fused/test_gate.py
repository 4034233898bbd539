"""The fused gates against the activation and the product in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider_adapters.nn.fused.ops import FusedGate, GateKind
from tests.adapters.nn.fused.common import (
    DEVICE,
    HERE,
    assert_rounded_once,
    assert_rows_stand_alone,
    values,
    with_dtypes,
)
from tests.adapters.nn.fused.rounding import fma_rounds_once

pytestmark = HERE  # which is mark.gpu where there is a device

EXACT: Mapping[GateKind, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize(("width", "dtype"), with_dtypes([1, 7, 1500], usual=96))
@pytest.mark.parametrize("kind", EXACT)
def test_the_second_half_is_gated_by_the_first(kind: GateKind, width: int, dtype: torch.dtype) -> None:
    both = values(dtype, 3, 2 * width, scale=3.0)
    before = both.clone()
    found = FusedGate(kind)(both)
    assert found.shape == (3, width)
    gate, up = torch.split_with_sizes(both.double(), (width, width), 1)
    assert_rounded_once(found, EXACT[kind](gate) * up, atol=3e-6)
    assert torch.equal(both, before)


@pytest.mark.parametrize("kind", EXACT)
def test_kinds_are_told_apart(kind: GateKind) -> None:
    both = values(torch.float32, 3, 64, scale=2.0)
    gate, up = torch.split_with_sizes(both.double(), (32, 32), 1)
    for other, exact in EXACT.items():
        if other != kind:
            with pytest.raises(AssertionError):
                assert_rounded_once(FusedGate(kind)(both), exact(gate) * up, atol=3e-6)


def test_far_from_zero_float32_is_right_to_the_last_places() -> None:
    """Where e^x is large its exponent has few bits left for the fraction, which a plain power of two loses."""
    if not fma_rounds_once():
        pytest.skip("this version of Triton's interpreter rounds twice in an fma, which no card does")
    x = torch.linspace(-80.0, 80.0, 4001, device=DEVICE)
    exact = functional.silu(x.double())
    found = FusedGate("silu")(torch.cat((x, torch.ones_like(x)))[None])[0]
    torch.testing.assert_close(found.double(), exact, atol=1e-36, rtol=1e-6)
    careless = x / (1.0 + torch.exp2(-x * torch.tensor(math.log2(math.e), device=DEVICE)))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(careless.double(), exact, atol=1e-36, rtol=1e-6)


@pytest.mark.parametrize("kind", EXACT)
def test_values_that_are_not_finite_stay_so_and_large_ones_do_not_overflow(kind: GateKind) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e4, -1e4, 0.0], device=DEVICE)
    found = FusedGate(kind)(torch.cat((x, torch.ones_like(x)))[None])[0]
    expected = torch.tensor([torch.nan, torch.inf, torch.nan, 3e38, 0.0, 1e4, 0.0, 0.0], device=DEVICE)
    torch.testing.assert_close(found, expected, equal_nan=True, atol=0.0, rtol=1e-6)


@pytest.mark.parametrize("kind", EXACT)
def test_a_row_does_not_depend_on_the_others(kind: GateKind) -> None:
    both, gate = values(torch.bfloat16, 6, 300), FusedGate(kind)
    assert_rows_stand_alone(lambda first, last: gate(both[first:last]), 6)
