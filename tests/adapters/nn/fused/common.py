"""Where the kernels run here, and how far from the exact value a result may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the fused kernels need Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# The interpreter is built on numpy, which warns of infinities and NaN. On a card the same tests run what Triton compiles.
HERE = pytest.mark.gpu if torch.cuda.is_available() else pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")

# One rounding to nearest, where Triton's interpreter truncates to bfloat16; float32 sums take a few.
_UNITS = {
    torch.float32: 2e-6,
    torch.bfloat16: 1.01 * (2**-8 if torch.cuda.is_available() else 2**-7),
    torch.float16: 1.01 * 2**-11,
}


def with_dtypes(sizes: Sequence[int], usual: int) -> list[tuple[int, torch.dtype]]:
    """Every size in float32, the usual one in the others too."""
    return [*((size, torch.float32) for size in sizes), *((usual, dtype) for dtype in DTYPES[1:])]


def values(dtype: torch.dtype, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def assert_rounded_once(found: Tensor, exact: Tensor, atol: float = 1e-6) -> None:
    """``found`` is ``exact`` (float64) up to one rounding to its dtype."""
    assert exact.dtype == torch.float64
    torch.testing.assert_close(found.double(), exact, atol=atol, rtol=_UNITS[found.dtype])


def assert_rows_stand_alone(function: Callable[[int, int], Tensor], rows: int) -> None:
    """``function(first, last)`` computes those rows: bit for bit the same however many others there are."""
    together = function(0, rows)
    for first, last in ((0, 1), (rows - 1, rows), (1, rows)):
        assert torch.equal(function(first, last), together[first:last])
