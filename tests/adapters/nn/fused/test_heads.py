"""The fused split, norm and rotation of heads against the same in steps, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider.types import RopeSpec
from outrider_adapters.nn import HeadNorms, Rope, rotate
from outrider_adapters.nn.fused.ops import FusedHeads
from tests.adapters.nn.fused.common import DEVICE, DTYPES, HERE, assert_rounded_once, assert_rows_stand_alone, values

pytestmark = HERE  # which is mark.gpu where there is a device

HEADS, KV_HEADS, EPS = 3, 1, 1e-6
ROWS = 5


def rotation(rotary_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rope = Rope(RopeSpec("default", 100.0, rotary_dim), 64, DEVICE, dtype)
    return rope.rotation(torch.tensor([0, 3, 63, 17, 4], device=DEVICE), None)


def in_steps(qkv: Tensor, head_dim: int, cos: Tensor, sin: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """q, k and v in float64."""
    heads = qkv.double().view(qkv.shape[0], -1, head_dim)
    q, k, v = torch.split_with_sizes(heads, (HEADS, KV_HEADS, KV_HEADS), 1)
    if weight is not None:
        q = functional.rms_norm(q, (head_dim,), None, EPS) * weight[:HEADS].double()
        k = functional.rms_norm(k, (head_dim,), None, EPS) * weight[HEADS:].double()
    return rotate(q, cos.double(), sin.double()), rotate(k, cos.double(), sin.double()), v


SIZES = [(2, 2), (12, 12), (16, 4), (64, 64), (96, 96)]
CASES = [*((size, torch.float32) for size in SIZES), *(((80, 32), dtype) for dtype in DTYPES)]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("size", "dtype"), CASES)
def test_heads_are_split_normed_and_rotated(size: tuple[int, int], dtype: torch.dtype, normed: bool) -> None:
    head_dim, rotary_dim = size
    qkv = values(dtype, ROWS, (HEADS + 2 * KV_HEADS) * head_dim)
    cos, sin = rotation(rotary_dim, dtype)
    weight = values(dtype, HEADS + KV_HEADS, head_dim, seed=1) if normed else None
    before = qkv.clone()
    found = FusedHeads(HEADS, KV_HEADS, head_dim, None if weight is None else (weight, EPS))(qkv, cos, sin)
    for part, exact in zip(found, in_steps(qkv, head_dim, cos, sin, weight), strict=True):
        assert part.is_contiguous()
        assert_rounded_once(part, exact, atol=2e-6 if dtype == torch.float32 else 2e-3)
    assert torch.equal(found[2], qkv.view(ROWS, -1, head_dim)[:, -KV_HEADS:])
    assert torch.equal(qkv, before)


@pytest.mark.parametrize("rows", [1, 4])
def test_rotations_of_several_axes_are_read_however_they_lie(rows: int) -> None:
    rope = Rope(RopeSpec("default", 100.0, 12, sections=(1, 2, 3)), 64, DEVICE, torch.float32)
    cos, sin = rope.rotation(torch.tensor([[0, 4, 9, 3], [7, 1, 9, 5], [3, 30, 9, 8]], device=DEVICE)[:, :rows], None)
    if rows > 1:
        assert not cos.is_contiguous()
    qkv, heads = values(torch.float32, rows, (HEADS + 2 * KV_HEADS) * 12), FusedHeads(HEADS, KV_HEADS, 12, None)
    for part, exact in zip(heads(qkv, cos, sin), in_steps(qkv, 12, cos, sin, None), strict=True):
        assert_rounded_once(part, exact)


def test_a_wrong_sign_or_norm_is_seen() -> None:
    qkv, weight = values(torch.float32, ROWS, (HEADS + 2 * KV_HEADS) * 8), values(torch.float32, 4, 8, seed=1)
    cos, sin = rotation(8, torch.float32)
    exact, _, _ = in_steps(qkv, 8, cos, sin, weight)
    normed, plain = (FusedHeads(HEADS, KV_HEADS, 8, norm) for norm in ((weight, EPS), None))
    assert_rounded_once(normed(qkv, cos, sin)[0], exact)
    for wrong in (normed(qkv, cos, -sin)[0], plain(qkv, cos, sin)[0]):
        with pytest.raises(AssertionError):
            assert_rounded_once(wrong, exact)


def test_head_norms_hand_over_their_weight_and_epsilon() -> None:
    q_weight, k_weight = values(torch.float32, 8), values(torch.float32, 8, seed=1)
    norms = HeadNorms(q_weight, k_weight, HEADS, KV_HEADS, 0.1)
    qkv = values(torch.float32, ROWS, (HEADS + 2 * KV_HEADS) * 8)
    still = (torch.ones(ROWS, 1, 8, device=DEVICE), torch.zeros(ROWS, 1, 8, device=DEVICE))
    q, k, _ = FusedHeads(HEADS, KV_HEADS, 8, (norms.weight, norms.eps))(qkv, *still)
    expected = norms(qkv.view(ROWS, -1, 8)[:, : HEADS + KV_HEADS])
    torch.testing.assert_close(torch.cat((q, k), dim=1), expected, atol=1e-6, rtol=2e-6)


def test_a_row_does_not_depend_on_the_others() -> None:
    qkv, (cos, sin) = values(torch.float32, ROWS, (HEADS + 2 * KV_HEADS) * 16), rotation(8, torch.float32)
    heads = FusedHeads(HEADS, KV_HEADS, 16, (values(torch.float32, HEADS + KV_HEADS, 16, seed=1), EPS))

    def run(first: int, last: int) -> Tensor:
        return torch.cat(heads(qkv[first:last], cos[first:last], sin[first:last]), dim=1)

    assert_rows_stand_alone(run, ROWS)
    expected = run(0, ROWS)
    qkv[2] = torch.nan
    for row in (0, 1, 3, 4):
        assert torch.equal(run(0, ROWS)[row], expected[row])
