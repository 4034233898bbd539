"""Loading a text model imports neither PyTorch's compiler nor transformers, which take longer than the loading itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = "import sys, outrider; outrider.load(device='cpu'){then}; print(*(name for name in {names!r} if name in sys.modules))"
HEAVY = ("torch._dynamo", "transformers", "triton")


def imported(then: str) -> list[str]:
    code = CODE.format(then=then, names=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("then", ["", ".generate('The', max_new_tokens=2)"])
def test_loading_and_generating_import_nothing_heavy(then: str) -> None:
    assert imported(then) == []


def test_the_check_sees_what_is_imported() -> None:
    assert imported("; import torch._dynamo")[:1] == ["torch._dynamo"]
