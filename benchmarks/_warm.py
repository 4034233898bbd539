"""Compiles beforehand what benchmarks on a card would compile one kernel after the other, in processes side by side.

``python -m benchmarks._warm NAME...``, with names of benchmarks. Kernels are left in Triton's cache (TRITON_CACHE_DIR), and
the embedded target as transformers compiles it in Inductor's. What gpu_8b compiles with transformers is not touched: there
the time that it takes is told.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from attrs import evolve

from benchmarks import gpu, gpu_8b, gpu_attention, gpu_images
from benchmarks._backends import EAGER, attention, attention_names
from benchmarks._cases import greedy_cases, groups_of, measured_cases
from benchmarks._digits import seeing_contestant
from benchmarks._gpu_bench import Bench, generate
from benchmarks._hub import HubPeer
from benchmarks._progress import tell, timed
from benchmarks.widen import LLAMA_8B, SMALL, build

__all__ = ["NEEDED", "TASKS", "tasks_of"]

_ROOT = Path(__file__).resolve().parent.parent
_HALF = torch.bfloat16


def _pair(dtype: torch.dtype, batch: int, device: torch.device) -> None:
    """Plain decoding and a tree of the pair; a chain's rounds and those of other runners launch the same kernels."""
    bench = Bench(device, quick=False, attention=attention_names(device)[0])
    pair = bench.pair(dtype)
    prompts = [case.prompt for case in measured_cases(batch, gpu.SINGLES)]
    for builder in (None, pair.tree(4, 5, 15)):
        generate(pair, builder, prompts, batch=batch, backend=bench.attention)


def _transformers(batch: int, device: torch.device) -> None:
    HubPeer(device, _HALF).compiled(groups_of(measured_cases(batch, gpu.SINGLES), batch))


def _images(name: str, device: torch.device) -> None:
    field = gpu_images.Field.made(name, device, attention_names(device)[0], (EAGER,))
    wanted = [gpu_images.name_of(draft, EAGER) for draft in (gpu.OFF, gpu.TREE)]
    for one in (seeing_contestant(name, field.models[name], field.questions) for name in wanted):
        for batch in gpu_images.BATCHES:
            one.generate([question.token_ids for question in field.questions[:batch]])


def _large(batch: int, device: torch.device) -> None:
    """Kernels know widths and heads but not how many layers there are, so the fewest do."""
    spec = evolve(LLAMA_8B, layers=SMALL.layers) if device.type == "cuda" else SMALL
    target, draft = build(spec, device, gpu_8b.DTYPE)
    for one in gpu_8b.entrants(target, draft, batch, attention_names(device)[0]):
        if one.contestant.name in (gpu_8b.name_of(0, EAGER), gpu_8b.name_of(gpu_8b.CHAINS[-1], EAGER)):
            one.contestant.generate([case.prompt for case in greedy_cases()[:batch]])


def _attention(device: torch.device) -> None:
    backend = attention(attention_names(device)[0])
    for case in gpu_attention.CASES:
        gpu_attention.run_once(case, backend, device)


_PAIR = {f"pair {dtype} {batch}": (dtype, batch) for dtype in gpu.DTYPES for batch in gpu.BATCHES}
_TRANSFORMERS = {f"transformers {batch}": batch for batch in gpu.BATCHES}
_LARGE = {f"8b {batch}": batch for batch in gpu_8b.BATCHES}

TASKS: Mapping[str, Callable[[torch.device], None]] = {
    **{name: partial(_pair, gpu.DTYPES[dtype], batch) for name, (dtype, batch) in _PAIR.items()},
    "pair float16 8": partial(_pair, torch.float16, 8),
    **{name: partial(_transformers, batch) for name, batch in _TRANSFORMERS.items()},
    **{f"images {dtype}": partial(_images, dtype) for dtype in gpu_images.DTYPES},
    **{name: partial(_large, batch) for name, batch in _LARGE.items()},
    "attention": _attention,
}
"""What can be done beforehand, by name; each in a process of its own."""

NEEDED: Mapping[str, Sequence[str]] = {
    "gpu": (*_PAIR, *_TRANSFORMERS),
    "gpu_8b": (*_LARGE, "pair bfloat16 8"),
    "gpu_attention": ("attention",),
    "gpu_checks": (*_PAIR, "pair float16 8"),
    "gpu_images": tuple(f"images {dtype}" for dtype in gpu_images.DTYPES),
    "gpu_prefill": ("pair bfloat16 8",),
}
"""The tasks of each benchmark."""


def tasks_of(names: Sequence[str]) -> tuple[str, ...]:
    """The tasks of all the benchmarks called ``names``, each once; of one that is not known there are none."""
    return tuple(dict.fromkeys(task for name in names for task in NEEDED.get(name, ())))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all tasks of the benchmarks side by side; 1 where one failed."""
    made = argparse.ArgumentParser(prog="python -m benchmarks._warm", description=__doc__)
    made.add_argument("names", nargs="*", help="benchmarks")
    made.add_argument("--task", choices=TASKS, help="do this one here")
    made.add_argument("--device", default="cuda")
    parsed = made.parse_args(arguments)
    device = str(parsed.device)
    task: str | None = parsed.task
    if task is not None:
        torch.set_num_threads(1)
        TASKS[task](torch.device(device))
        return 0
    names: list[str] = parsed.names
    with timed("everything"), ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        return max(pool.map(partial(_apart, device), tasks_of(names)), default=0)


def _apart(device: str, task: str) -> int:
    """Do ``task`` in a process of its own; its exit status."""
    command = [sys.executable, "-m", "benchmarks._warm", "--task", task, "--device", device]
    with timed(task):
        done = subprocess.run(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    if done.returncode:
        tell(f"{task} FAILED\n{done.stdout}")
    return int(done.returncode != 0)


if __name__ == "__main__":
    raise SystemExit(main())
