"""Which tensors get fused kernels, and that nothing else pays for them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from outrider import _triton
from outrider_adapters.nn import RmsNorm
from outrider_adapters.nn.fused import available, fused_gate, fused_heads, fused_norm
from outrider_adapters.nn.fused.choice import serves

IMPORTED = """
import sys, torch
from outrider_adapters.nn import GatedMlp, RmsNorm
RmsNorm(torch.ones(4), 1e-6)(torch.ones(2, 4))
GatedMlp(torch.nn.functional.silu, torch.ones(8, 4), torch.ones(4, 4)).forward(torch.ones(2, 4))
print("triton" in sys.modules)
"""


def test_no_kernel_serves_a_cpu() -> None:
    weight = torch.ones(4)
    assert fused_norm(weight, 1e-6) is None
    assert fused_heads(weight, 1, 1, 4, None) is None
    assert fused_gate(weight, "silu") is None
    assert RmsNorm(weight, 1e-6).fused is None


def test_a_model_on_a_cpu_does_not_import_triton() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"


def test_without_what_triton_needs_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton, "missing", lambda: "a clause")
    assert not available()


@pytest.mark.gpu
def test_what_is_on_cuda_is_served_but_for_float64_and_other_gates() -> None:
    weight = torch.ones(8, 8, device="cuda")
    assert available()
    assert serves(weight)
    assert serves(weight.bfloat16())
    assert not serves(weight.double())
    assert fused_gate(weight, None) is None
    assert RmsNorm(weight[0], 1e-6).fused is not None
    assert RmsNorm(weight[0].double(), 1e-6).fused is None
