"""The kernels at the sizes of an 8B model: against torch in float64, in CUDA graphs, and one row against many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider.types import RopeSpec
from outrider_adapters.nn import Rope, rotate
from outrider_adapters.nn.fused.ops import FusedGate, FusedHeads, FusedNorm
from tests.adapters.nn.fused.common import DTYPES, assert_rounded_once, assert_rows_stand_alone, values

pytestmark = pytest.mark.gpu

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
EPS = 1e-5
ROWS = [1, 6, 64]

Op = Callable[[Tensor], Tensor]


def rope_rows(dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor]:
    rope = Rope(RopeSpec("default", 500000.0, HEAD_DIM), 8192, torch.device("cuda"), dtype)
    return rope.rotation(torch.arange(rows, device="cuda") * 97, None)


def heads_as_rows(dtype: torch.dtype, normed: bool) -> tuple[Op, Op]:
    """The kernel, and the same in float64; q, k and v one beside the other."""
    weight = values(dtype, HEADS + KV_HEADS, HEAD_DIM, seed=1)
    heads = FusedHeads(HEADS, KV_HEADS, HEAD_DIM, (weight, EPS) if normed else None)
    cosines, sines = rope_rows(dtype, max(ROWS))  # made here: a capture may not build tables

    def kernel(qkv: Tensor) -> Tensor:
        rows = qkv.shape[0]
        parts = heads(qkv, cosines[:rows], sines[:rows])
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def exact(qkv: Tensor) -> Tensor:
        wide = qkv.double().view(-1, HEADS + 2 * KV_HEADS, HEAD_DIM)
        qk, v = torch.split_with_sizes(wide, (HEADS + KV_HEADS, KV_HEADS), 1)
        if normed:
            qk = functional.rms_norm(qk, (HEAD_DIM,), None, EPS) * weight.double()
        cos, sin = (part[: qkv.shape[0]].double() for part in (cosines, sines))
        return torch.cat((rotate(qk, cos, sin), v), dim=1).flatten(1)

    return kernel, exact


def operations(dtype: torch.dtype) -> Mapping[str, tuple[int, Op, Op]]:
    """Width of the input rows, the kernel and its definition in float64, by name."""
    weight, residual = values(dtype, HIDDEN, seed=1), values(dtype, max(ROWS), HIDDEN, seed=2)
    norm = FusedNorm(weight, EPS)

    def exact_norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x.double(), (HIDDEN,), weight.double(), EPS)

    return {
        "norm": (HIDDEN, norm, exact_norm),
        "norm of a sum": (
            HIDDEN,
            lambda x: norm.add(x.clone(), residual[: x.shape[0]]),
            lambda x: exact_norm(x + residual[: x.shape[0]]),
        ),
        "heads": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, *heads_as_rows(dtype, normed=False)),
        "normed heads": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, *heads_as_rows(dtype, normed=True)),
        "silu": (2 * INNER, FusedGate("silu"), lambda x: _gated(functional.silu, x)),
        "gelu": (2 * INNER, FusedGate("gelu"), lambda x: _gated(functional.gelu, x)),
    }


def _gated(activation: Op, both: Tensor) -> Tensor:
    gate, up = both.double().chunk(2, dim=1)
    return activation(gate) * up


NAMES = ["norm", "norm of a sum", "heads", "normed heads", "silu", "gelu"]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_its_definition_rounded_once(name: str, dtype: torch.dtype, rows: int) -> None:
    width, kernel, exact = operations(dtype)[name]
    x = values(dtype, rows, width, scale=2.0)
    assert_rounded_once(kernel(x), exact(x), atol=2e-6 if dtype == torch.float32 else 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_computes_the_same_bits_on_new_inputs(name: str, dtype: torch.dtype) -> None:
    width, kernel, _ = operations(dtype)[name]
    x = values(dtype, 6, width)
    kernel(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(x)
    for seed in range(3):
        x.copy_(values(dtype, 6, width, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, kernel(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["norm", "silu", "gelu"])
def test_a_row_has_the_same_bits_among_many(name: str, dtype: torch.dtype) -> None:
    width, kernel, _ = operations(dtype)[name]
    x = values(dtype, 64, width)
    assert_rows_stand_alone(lambda first, last: kernel(x[first:last]), 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_sum_or_of_heads_has_the_same_bits_among_many(dtype: torch.dtype) -> None:
    norm, residual = FusedNorm(values(dtype, HIDDEN), EPS), values(dtype, 64, HIDDEN, seed=1)
    x = values(dtype, 64, HIDDEN, seed=2)
    assert_rows_stand_alone(lambda first, last: norm.add(x[first:last].clone(), residual[first:last]), 64)
    qkv, (cos, sin) = values(dtype, 64, (HEADS + 2 * KV_HEADS) * HEAD_DIM), rope_rows(dtype, 64)
    weight = values(dtype, HEADS + KV_HEADS, HEAD_DIM, seed=1)
    heads = FusedHeads(HEADS, KV_HEADS, HEAD_DIM, (weight, EPS))

    def run(first: int, last: int) -> Tensor:
        return torch.cat(heads(qkv[first:last], cos[first:last], sin[first:last]), dim=1)

    assert_rows_stand_alone(run, 64)
