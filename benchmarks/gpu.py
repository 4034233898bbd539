"""Correctness, then speed, of the embedded pair on a CUDA card.

``python -m benchmarks.gpu [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path (``scripts/gpu`` does
it); see ``--help``. Every check runs even when one fails; the exit status tells. ``--device cpu --quick`` walks through
the same code without a card.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks._cases import greedy_cases
from benchmarks._gpu_checks import Bench, Outcome, checks, run_checks
from benchmarks._hub import HubPeer
from benchmarks._outrider import outrider_contestant
from benchmarks._pair import Pair
from benchmarks._race import Contestant, Result, agreement, device_wait, race
from benchmarks._report import Report, Table, environment
from outrider_backends.cuda_graph import CudaGraphRunner

__all__ = ["outcome_table", "speed_table"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCHES = (1, 8)


def contestants(bench: Bench, dtype: torch.dtype) -> list[Contestant]:
    """transformers, plain decoding, chains and a tree."""
    pair = bench.pair(dtype)
    lengths = (5,) if bench.quick else (1, 3, 5)
    return [
        HubPeer(bench.device, dtype).plain(),
        outrider_contestant("drafting off", pair, None),
        *(outrider_contestant(f"chain {length}", pair, pair.chain(length)) for length in lengths),
        outrider_contestant("tree 4x5, 15 tokens", pair, pair.tree(4, 5, 15)),
        *(_graphs(pair) if bench.device.type == "cuda" else ()),
    ]


def _graphs(pair: Pair) -> list[Contestant]:
    """The same with every round replayed as one CUDA graph."""
    builders = {
        "drafting off": None,
        "chain 3": pair.chain(3),
        "chain 5": pair.chain(5),
        "tree 4x5": pair.tree(4, 5, 15),
    }
    return [
        outrider_contestant(f"{name}, round graph", pair, builder, CudaGraphRunner)
        for name, builder in builders.items()
    ]


def speed_table(groups: Sequence[tuple[str, int, Sequence[Result]]]) -> Table:
    """One row per dtype, batch size and contestant; ratios and texts are compared with the first of each group."""
    rows: list[tuple[str, ...]] = []
    for dtype, batch, results in groups:
        baseline = results[0]
        rows += [
            (
                dtype,
                str(batch),
                result.name,
                f"{result.tokens_per_second:.0f}",
                f"{result.tokens_per_second / baseline.tokens_per_second:.2f}",
                f"{result.acceptance_length:.2f}",
                f"{result.ms_per_pass:.2f}",
                f"±{result.spread:.0%}",
                f"{agreement(result.answer, baseline.answer.token_ids):.0%}",
            )
            for result in results
        ]
    columns = ("dtype", "batch", "contestant", "tokens/s", "× transformers", "acceptance length", "ms/round", "spread")
    return Table((*columns, "same tokens"), tuple(rows), frozenset({0, 2}))


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per check; only the first line of what each found."""
    rows = [
        (
            outcome.name,
            "passed" if outcome.passed else "FAILED",
            outcome.detail.splitlines()[0] if outcome.detail else "",
        )
        for outcome in outcomes
    ]
    return Table(("check", "", "found"), tuple(rows), frozenset({0, 1, 2}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, print, and write the report where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("out_dir", type=Path, nargs="?", help="folder in which to leave gpu.md")
    parser.add_argument("--device", default="cuda", help="where to run; cpu walks through the same code")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions; medians are given")
    parser.add_argument("--quick", action="store_true", help="fewer settings and prompts, one repetition")
    parser.add_argument("--only", choices=("checks", "speed"), help="one half of it")
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    markdown: Path | None = options.markdown
    out_dir: Path | None = options.out_dir

    device = torch.device(str(options.device))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false; --device cpu --quick walks through the same code")
        return 1
    torch.set_num_threads(1)
    bench = Bench(device, options.quick)
    began = time.perf_counter()
    outcomes = [] if options.only == "speed" else run_checks(bench, checks())
    groups = [] if options.only == "checks" else _speed(bench, 1 if bench.quick else int(options.repeats))
    print(f"\n{time.perf_counter() - began:.0f} s in all\n")
    report = Report("gpu")
    report.add(environment(device))
    if outcomes:
        report.add(outcome_table(outcomes))
    if groups:
        report.add(
            'Greedy, 64 new tokens, medians of repetitions in which the contestants take turns. "Round graph": each round is '
            "one CUDA graph; the others run eagerly."
        )
        report.add(speed_table(groups))
    for path in (markdown, None if out_dir is None else out_dir / "gpu.md"):
        if path is not None:
            report.write(path)
    return int(not all(outcome.passed for outcome in outcomes))


def _speed(bench: Bench, repeats: int) -> list[tuple[str, int, list[Result]]]:
    cases = greedy_cases()
    groups: list[tuple[str, int, list[Result]]] = []
    for name, dtype in DTYPES.items():
        field = contestants(bench, dtype)
        for batch in BATCHES:
            # One prompt at a time takes longest; four of them tell enough.
            some = cases[:4] if batch == 1 else cases
            # Half precision has exact ties, which batches of other shapes may break otherwise: no text is the right one.
            check = dtype is torch.float32
            groups.append((name, batch, race(field, some, batch, repeats, check=check, wait=device_wait(bench.device))))
    return groups


if __name__ == "__main__":
    raise SystemExit(main())
