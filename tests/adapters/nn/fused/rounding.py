"""Whether `tl.fma` rounds once where the tests run: the interpreter of Triton 3.7 multiplies, rounds, and adds."""

# Triton has no stubs, and its language is untyped throughout.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator"
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from tests.adapters.nn.fused.common import DEVICE

__all__ = ["fma_rounds_once"]


@triton.jit
def _square_and_add(values: tl.tensor, out: tl.tensor) -> None:
    x = tl.load(values)
    tl.store(out, tl.fma(x, x, tl.load(values + 1)))


@cache
def fma_rounds_once() -> bool:
    """(1 + 2^-12)² - (1 + 2^-11) is 2^-24, which a product that was rounded to float32 has lost."""
    out = torch.zeros(1, device=DEVICE)
    _square_and_add[(1,)](torch.tensor([1 + 2**-12, -(1 + 2**-11)], device=DEVICE), out)
    return bool(out == 2**-24)
