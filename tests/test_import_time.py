"""``import outrider`` is cheap, and brings in nothing that the shell or an embedder may never use."""

from __future__ import annotations

import statistics
import subprocess
import sys

LIMIT_S = 0.3
# The time of the process, not of the clock on the wall: that would time whatever else the machine does.
TIMED = "import time, torch; begin = time.process_time(); import outrider; print(time.process_time() - begin)"
LISTED = "import outrider, sys; print(*sys.modules)"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_importing_costs_little_beyond_torch() -> None:
    """The median of three; a machine that is busy gets more tries, code that is slow fails them all."""
    medians: list[float] = []
    for _ in range(4):
        medians.append(statistics.median(float(run(TIMED)) for _ in range(3)))
        if medians[-1] < LIMIT_S:
            return
    raise AssertionError(f"import outrider takes {medians} s beyond torch, {LIMIT_S} s are allowed")


def test_importing_brings_in_no_implementation_and_no_model_library() -> None:
    imported = {module.split(".")[0] for module in run(LISTED).split()}
    assert "outrider" in imported
    assert imported & {"transformers", "tokenizers", "outrider_backends", "outrider_adapters", "triton"} == set()
