"""What only a process of its own can tell: the time of ``import outrider``, and the memory that loading takes."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import cast

import torch
from attrs import frozen

from benchmarks._pair import Pair, load_pair
from outrider.checkpoint import Checkpoint
from outrider_adapters.codec import read_codec
from outrider_adapters.pairs import tiny

__all__ = ["LoadMemory", "import_seconds", "load_memory"]

_ROOT = Path(__file__).resolve().parent.parent
_STATUS = Path("/proc/self/status")
_IMPORT = "import time, torch; begin = time.perf_counter(); import outrider; print(time.perf_counter() - begin)"
_LOAD = "from benchmarks._process import print_load; print_load()"


@frozen
class LoadMemory:
    """Bytes of the weights of the target and both drafts in float32, and how far resident memory rose during loading.

    ``first_bytes``: in a process that has loaded nothing yet, pages of the libraries that do the work included;
    ``again_bytes``: for the same models once more beside the first, which is what the weights alone cost. Pages of the
    mapped files count in both.
    """

    weight_bytes: int
    first_bytes: int
    again_bytes: int


def import_seconds(repeats: int) -> float:
    """Median time that ``import outrider`` takes in a process that has imported torch."""
    return statistics.median(float(_run(_IMPORT)) for _ in range(repeats))


def load_memory() -> LoadMemory | None:
    """Peak of resident memory while the pair is loaded, less what was resident before; ``None`` but on Linux."""
    if not _STATUS.exists():
        return None
    found = cast("dict[str, int]", json.loads(_run(_LOAD)))
    return LoadMemory(**found)


def print_load() -> None:
    """Load the pair in this process and print what `load_memory` reads."""
    pair = tiny()
    checkpoints = [Checkpoint(directory) for directory in (pair.target, *pair.drafts)]
    weight_bytes = sum(
        math.prod(info.shape) * (4 if info.dtype.is_floating_point else info.dtype.itemsize)
        for checkpoint in checkpoints
        for info in checkpoint.tensors.values()
    )
    read_codec(checkpoints[0])  # the tokenizer's library is no part of what is measured
    kept: list[Pair] = []
    peaks: list[int] = []
    for _ in range(2):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts from here
        before = _resident("VmRSS")
        kept.append(load_pair(torch.device("cpu")))
        peaks.append(_resident("VmHWM") - before)
    print(json.dumps({"weight_bytes": weight_bytes, "first_bytes": peaks[0], "again_bytes": peaks[1]}))


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout
