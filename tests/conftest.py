"""One thread, reproducible examples, the trained pair, and GPU tests that are skipped aloud."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported anywhere: with several test processes, more threads than cores only take turns.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from outrider.interfaces import ModelPair

torch.set_num_threads(1)

# Before Triton is imported anywhere: without a card, its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    from hypothesis import settings
except ModuleNotFoundError:  # a machine that only runs the GPU tests has no need of it
    pass
else:
    settings.register_profile("outrider", derandomize=True, deadline=None, database=None)
    settings.load_profile("outrider")

DATA = Path(__file__).resolve().parent.parent / "adapters" / "outrider_adapters" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is false here")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny_pair() -> ModelPair:
    """Directories of the trained pair that comes with the package: a target and its EAGLE-3 and EAGLE-1 drafts."""
    return ModelPair(target=DATA / "tiny-llama", drafts=(DATA / "tiny-eagle3", DATA / "tiny-eagle"))
