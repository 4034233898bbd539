"""The kernels. Importing this imports Triton.

All compute in float32 and round once. A program works on one row or a part of one, with block sizes and warps that follow
from widths alone, so the bits of a row do not depend on how many rows there are.
"""

# Triton has no stubs, and its language is untyped throughout. What is typed are the launches, in ops.py.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-return"
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_rms_norm", "gate", "rms_norm", "split_heads"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG2_E_REST = tl.constexpr(1.9259629911266175e-8)
"""What rounding log2(e) to float32 leaves."""
_LN_2 = tl.constexpr(0.6931471805599453)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def _inverse_rms(squares: tl.tensor, WIDTH: tl.constexpr, EPS: tl.constexpr) -> tl.tensor:
    return tl.div_rn(1.0, tl.sqrt_rn(squares / WIDTH + EPS))


@triton.jit
def rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``out[r] = x[r] / rms(x[r]) · weight``; one program for each row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, inside, 0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + column, inside, 0.0).to(tl.float32)
    value *= _inverse_rms(tl.sum(value * value, axis=0), WIDTH, EPS)
    tl.store(out + row * out_stride + column, value * scale, inside)


@triton.jit
def add_rms_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    residual_stride: tl.tensor,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``x += residual`` in place, then ``out`` as `rms_norm` of the sum as it was stored; one program for each row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, inside, 0.0).to(tl.float32)
    added = tl.load(residual + row * residual_stride + column, inside, 0.0).to(tl.float32)
    here = x + row * WIDTH + column
    total = (tl.load(here, inside, 0.0).to(tl.float32) + added).to(x.dtype.element_ty)
    tl.store(here, total, inside)
    value = total.to(tl.float32)
    value *= _inverse_rms(tl.sum(value * value, axis=0), WIDTH, EPS)
    tl.store(out + row * WIDTH + column, value * scale, inside)


@triton.jit
def split_heads(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    weight: tl.tensor | None,
    out: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    EPS: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
) -> None:
    """Copy the heads of ``qkv [T, all heads, D]`` to ``out``: all of q, all of k, all of v, one after the other.

    q and k are normed where there is a ``weight [q and k heads, D]``, and their first 2 · HALF dimensions are rotated. One
    program for each head of a row.
    """
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    head = tl.program_id(1)
    ROTATED: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    source = qkv + (row * (ROTATED + NUM_KV_HEADS) + head) * HEAD_DIM
    is_query = head < NUM_HEADS
    first = tl.where(is_query, 0, tl.where(head < ROTATED, NUM_HEADS, ROTATED))
    heads = tl.where(is_query, NUM_HEADS, NUM_KV_HEADS)
    target = out + (rows * first + row * heads + (head - first)) * HEAD_DIM
    if head >= ROTATED:
        whole = tl.arange(0, HEAD_BLOCK)
        tl.store(target + whole, tl.load(source + whole, whole < HEAD_DIM), whole < HEAD_DIM)
    else:
        column = tl.arange(0, HALF_BLOCK)
        inside = column < HALF
        at_low = row * row_stride + column * column_stride
        at_high = at_low + HALF * column_stride
        low_cos, high_cos = tl.load(cos + at_low, inside).to(tl.float32), tl.load(cos + at_high, inside).to(tl.float32)
        low_sin, high_sin = tl.load(sin + at_low, inside).to(tl.float32), tl.load(sin + at_high, inside).to(tl.float32)
        low = tl.load(source + column, inside, 0.0).to(tl.float32)
        high = tl.load(source + HALF + column, inside, 0.0).to(tl.float32)
        rest_column = 2 * HALF + tl.arange(0, REST_BLOCK)
        is_rest = rest_column < HEAD_DIM
        rest = tl.load(source + rest_column, is_rest, 0.0).to(tl.float32)
        if weight is not None:
            scale = weight + head * HEAD_DIM
            squares = tl.sum(low * low + high * high, axis=0) + tl.sum(rest * rest, axis=0)
            inverse = _inverse_rms(squares, HEAD_DIM, EPS)
            low *= inverse * tl.load(scale + column, inside).to(tl.float32)
            high *= inverse * tl.load(scale + HALF + column, inside).to(tl.float32)
            rest *= inverse * tl.load(scale + rest_column, is_rest).to(tl.float32)
        tl.store(target + column, low * low_cos + high * low_sin, inside)
        tl.store(target + HALF + column, high * high_cos + low * high_sin, inside)
        tl.store(target + rest_column, rest, is_rest)


@triton.jit
def _exp(x: tl.tensor) -> tl.tensor:
    """e^x: the hardware's power of two, corrected by what rounding the exponent lost, up to 60 last places otherwise."""
    exponent = x * _LOG2_E
    lost = tl.fma(x, _LOG2_E, -exponent) + x * _LOG2_E_REST
    power = tl.exp2(exponent)
    # Beyond, the power is 0 or infinite, or NaN as it must be.
    return tl.where(tl.abs(exponent) < 126.0, power + power * (lost * _LN_2), power)


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    return tl.div_rn(1.0, 1.0 + _exp(-x))


@triton.jit
def gate(both: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """``out = act(both[:, :WIDTH]) · both[:, WIDTH:]``; one program for each block of columns of a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    here = both + row * (2 * WIDTH) + column
    x = tl.load(here, inside, 0.0).to(tl.float32)
    up = tl.load(here + WIDTH, inside, 0.0).to(tl.float32)
    if KIND == "silu":
        x = tl.div_rn(x, 1.0 + _exp(-x))
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * _SQRT_HALF))
    elif KIND == "gelu_tanh":
        # (1 + tanh(y)) / 2 is the sigmoid of 2y.
        # The constant stands on the right: on the left, Triton 3.7's interpreter makes a constant of the product.
        x *= _sigmoid((x + 0.044715 * x * x * x) * _TWO_SQRT_2_OVER_PI)
    else:
        x *= _sigmoid(1.702 * x)
    tl.store(out + row * WIDTH + column, x * up, inside)
