"""Fused attention and feed-forward against the same arithmetic on separate projections."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider.checkpoint import Config
from outrider.errors import CheckpointError
from outrider.types import AttentionSpec, RopeSpec
from outrider_adapters.nn import ACTIVATIONS, FusedAttention, GatedMlp, Rope, read_activation, rotate

SPEC = AttentionSpec(num_heads=3, num_kv_heads=1, head_dim=4, scale=0.5)
IN, OUT, ROWS = 10, 7, 5


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Recorder:
    """An attention that keeps what it was given and answers with the queries doubled."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Tensor, Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.calls.append((layer, q.clone(), k.clone(), v.clone()))
        return 2 * q


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_projects_rotates_and_projects_back(biased: bool, with_residual: bool) -> None:
    qkv, out = values(20, IN, seed=1), values(OUT, 12, seed=2)
    qkv_bias, o_bias = (values(20, seed=3), values(OUT, seed=4)) if biased else (None, None)
    residual = values(ROWS, OUT, seed=5) if with_residual else None
    x, attend = values(ROWS, IN), Recorder()
    cos, sin = Rope(RopeSpec("default", 100.0, 4), 32, torch.device("cpu"), torch.float32).rotation(
        torch.arange(ROWS), None
    )
    untouched = (x.clone(), None if residual is None else residual.clone())
    block = FusedAttention(SPEC, qkv, out, qkv_bias, o_bias)
    found = block.forward(x, 6, cos, sin, attend, residual)

    def project(first: int, last: int) -> Tensor:
        bias = None if qkv_bias is None else qkv_bias[first:last]
        return functional.linear(x, qkv[first:last], bias).view(ROWS, -1, 4)

    q, k, v = rotate(project(0, 12), cos, sin), rotate(project(12, 16), cos, sin), project(16, 20)
    ((layer, seen_q, seen_k, seen_v),) = attend.calls
    assert layer == 6
    for seen, expected in ((seen_q, q), (seen_k, k), (seen_v, v)):
        torch.testing.assert_close(seen, expected)
    expected = functional.linear((2 * q).flatten(1), out, o_bias)
    torch.testing.assert_close(found, expected if residual is None else expected + residual)
    assert torch.equal(x, untouched[0])
    assert residual is None or untouched[1] is None or torch.equal(residual, untouched[1])


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_gates_the_second_half_by_the_first(name: str, biased: bool, with_residual: bool) -> None:
    gate, up, down = values(6, OUT, seed=1), values(6, OUT, seed=2), values(OUT, 6, seed=3)
    gate_bias, up_bias, down_bias = values(6, seed=4), values(6, seed=5), values(OUT, seed=6)
    both = torch.cat((gate_bias, up_bias)) if biased else None
    x, residual = values(ROWS, OUT), values(ROWS, OUT, seed=7) if with_residual else None
    before = x.clone()
    block = GatedMlp(ACTIVATIONS[name], torch.cat((gate, up)), down, both, down_bias if biased else None)
    found = block.forward(x, residual)
    gated = ACTIVATIONS[name](functional.linear(x, gate, gate_bias if biased else None))
    expected = functional.linear(
        gated * functional.linear(x, up, up_bias if biased else None), down, down_bias if biased else None
    )
    torch.testing.assert_close(found, expected if residual is None else expected + residual)
    assert torch.equal(x, before)


def test_an_unknown_activation_is_refused_with_the_allowed_ones() -> None:
    assert read_activation(Config("c", {})) == "silu"
    with pytest.raises(CheckpointError, match="'swoosh', allowed are silu"):
        read_activation(Config("c", {"hidden_act": "swoosh"}))
