"""What the Triton backend refuses, and that it can be asked for where Triton is not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider import _triton
from outrider.errors import ConfigurationError
from outrider.kv import PagedKVCache
from outrider.types import CaptureSupport
from outrider_backends.triton import backend, create
from tests.backends.plain_batches import CPU, PLAIN, batch_of, cache
from tests.backends.triton.scenes import needs_interpreter


def test_any_plan_can_be_captured() -> None:
    assert create().capabilities.capture is CaptureSupport.ANY


def test_without_triton_only_creating_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton, "missing", lambda: "it lacks a thing; do that")
    with pytest.raises(ConfigurationError, match=r"'triton': it lacks a thing; do that, or choose.*'sdpa'"):
        create()


def test_the_package_is_imported_without_triton() -> None:
    code = "import sys, outrider_backends.triton; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_interpreter
def test_batches_that_cannot_be_planned_name_every_fault() -> None:
    tree = evolve(batch_of((1, 3)), tail_mask=torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(ConfigurationError, match="tail mask needs equally many queries"):
        create().plan(tree, [PLAIN], cache())
    wrong = evolve(
        batch_of((2, 2)),
        slots=torch.zeros(3, dtype=torch.int64),
        prefix_lens=torch.zeros(1, dtype=torch.int64),
        host_prefix_lens=(0,),
    )
    with pytest.raises(ConfigurationError, match="3 problems") as caught:
        create().plan(wrong, [PLAIN], cache())
    assert "3 slots" in str(caught.value)
    assert "1 by host_prefix_lens" in str(caught.value)
    with pytest.raises(ConfigurationError, match="33 positions, the page table holds 32"):
        create().plan(batch_of((33, 1), known=True), [PLAIN], cache())


@needs_interpreter
def test_memory_without_dense_heads_is_refused() -> None:
    class Transposed(PagedKVCache):
        def keys(self, layer: int) -> Tensor:
            return super().keys(layer).transpose(1, 2).contiguous().transpose(1, 2)

    with pytest.raises(ConfigurationError, match=r"layer 0.*contiguous head vectors"):
        create().plan(batch_of((1,)), [PLAIN], Transposed([PLAIN], 4, 16, torch.float32, CPU))


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "INTERPRETED", False)
    assert create().capabilities.devices == {"cuda"}
    with pytest.raises(ConfigurationError, match="choose 'sdpa', or set TRITON_INTERPRET=1"):
        create().plan(batch_of((1,)), [PLAIN], cache())


@needs_interpreter
@pytest.mark.parametrize("query_lens", [(), (0,), (0, 0)])
def test_no_queries(query_lens: tuple[int, ...]) -> None:
    plan = create().plan(batch_of(query_lens), [PLAIN], cache())
    empty = torch.zeros(0, 4, 16)
    assert torch.equal(plan.attend(0, empty, empty[:, :2], empty[:, :2]), empty)


@needs_interpreter
def test_request_without_queries_among_others() -> None:
    kv = cache()
    plan = create().plan(batch_of((0, 2, 0), known=True), [PLAIN], kv)
    q, k = torch.randn(2, 4, 16), torch.randn(2, 2, 16)
    assert torch.equal(plan.attend(0, q, k, k), torch.zeros(2, 4, 16))  # padding slots: nothing is seen
    assert not kv.keys(0).any()
