"""Does memory stay flat? Many rounds with requests coming, ending and being cancelled, and a table of what is held.

    python benchmarks/memory.py --rounds 10000 --device cuda

Every line after the first should repeat it, but for noise: a leak of one tensor a round would be as many tensors as rounds.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
import tracemalloc

import torch
from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor

import outrider
from outrider import EngineOptions, Request
from outrider.loop.engine import Engine

_PROMPTS = ((1, 65, 267, 297), (1,), (1, 201, 69, 683, 301, 1226, 75, 394, 65))


@frozen
class Held:
    """What the process holds after ``rounds`` rounds."""

    rounds: int
    tensors: int
    tensor_bytes: int
    python_bytes: int
    resident_bytes: int
    device_bytes: int

    @classmethod
    def now(cls, rounds: int) -> Held:
        gc.collect()
        # Not isinstance, which asks some of torch's lazy objects for their class, and they warn.
        tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
        # Tensors of other layouts (weights packed for a CPU) have no storage to look at; they are counted.
        strided = [each.untyped_storage() for each in tensors if each.layout is torch.strided]
        storages = {storage.data_ptr(): storage.nbytes() for storage in strided}
        return cls(
            rounds=rounds,
            tensors=len(tensors),
            tensor_bytes=sum(storages.values()),
            python_bytes=tracemalloc.get_traced_memory()[0],
            resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            * (1 if sys.platform == "darwin" else 1024),
            device_bytes=torch.cuda.memory_allocated() if torch.cuda.is_available() else 0,
        )


def run(engine: Engine, first: int, last: int) -> None:
    """Rounds first..last-1."""
    for number in range(first, last):
        if engine.num_waiting == 0:
            engine.submit(Request(_PROMPTS[number % len(_PROMPTS)], max_new_tokens=5 + number % 40, eos_ids=()))
        if number % 29 == 0:
            engine.cancel(engine.submit(Request(_PROMPTS[0], max_new_tokens=4)))
        engine.step()


def table(rows: list[Held]) -> Table:
    """The measurements, one a line."""
    made = Table(
        "rounds", "tensors", "tensor MiB", "Python KiB", "peak resident MiB", "device MiB", title="Memory held"
    )
    for row in rows:
        made.add_row(
            str(row.rounds),
            str(row.tensors),
            f"{row.tensor_bytes / 2**20:.2f}",
            f"{row.python_bytes / 2**10:.0f}",
            f"{row.resident_bytes / 2**20:.1f}",
            f"{row.device_bytes / 2**20:.2f}",
        )
    return made


def main() -> int:
    """Run and print; 1 when the number of tensors or the Python memory grows with the rounds."""
    parser = argparse.ArgumentParser(description="Memory held over many rounds.")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runner", default="eager")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    options = EngineOptions(max_batch_size=arguments.batch, max_length=128, rounds_in_flight=1)
    model = outrider.load(device=arguments.device, runner=arguments.runner, options=options)
    warm_up, each = 300, max(arguments.rounds // arguments.lines, 1)
    run(model.engine, 0, warm_up)
    tracemalloc.start()
    run(model.engine, warm_up, warm_up + 50)
    rows: list[Held] = [Held.now(0)]
    started, done = time.perf_counter(), 0
    while done < arguments.rounds:
        step = min(each, arguments.rounds - done)
        run(model.engine, done, done + step)
        done += step
        rows.append(Held.now(done))
    Console(width=110).print(table(rows))
    print(f"{done / (time.perf_counter() - started):.0f} rounds a second, memory tracing included")
    grown = rows[-1].tensors - rows[1].tensors > 30 or rows[-1].python_bytes - rows[1].python_bytes > 200_000
    print("memory GROWS" if grown else "memory is flat")
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
