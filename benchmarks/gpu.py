"""Correctness, then speed, of the embedded pair on a CUDA card.

``python -m benchmarks.gpu [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path (``scripts/gpu`` does
it); see ``--help``. Every check runs even when one fails; the exit status tells. ``--device cpu --quick`` walks through
the same code without a card.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks._backends import EAGER, GRAPHS, WHOLE_ROUND
from benchmarks._cases import greedy_cases
from benchmarks._gpu_bench import Bench
from benchmarks._gpu_checks import Outcome, checks, run_checks
from benchmarks._gpu_options import GpuOptions, parser, read
from benchmarks._hub import HubPeer
from benchmarks._pair import Pair
from benchmarks._report import Report, Table, environment
from benchmarks._speed import Entrant, Group, entrant, hub_entrants, measure, speed_table
from outrider.drafting.builders import DrafterBuilder

__all__ = ["contestants", "outcome_table", "steps_of"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCHES = (1, 8)

TREE = "tree 4x5, 15 tokens"

DRAFTS: Mapping[str, tuple[int, Callable[[Pair], DrafterBuilder | None]]] = {
    "drafting off": (0, lambda _: None),
    "chain 3": (3, lambda pair: pair.chain(3)),
    "chain 5": (5, lambda pair: pair.chain(5)),
    TREE: (15, lambda pair: pair.tree(4, 5, 15)),
}
"""What is drafted, by name: how many tokens, and by what."""


def steps_of(draft: str, dtype: torch.dtype) -> tuple[str, ...]:
    """How ``draft`` is run: eagerly and as a whole round; in between too where it tells most for its time."""
    if draft == "chain 5" or (dtype is torch.bfloat16 and draft != TREE):
        return (EAGER, *GRAPHS)
    return (EAGER, WHOLE_ROUND)


def contestants(bench: Bench, dtype: torch.dtype, batch: int) -> list[Entrant]:
    """Every draft on the steps that `steps_of` gives it."""
    pair = bench.pair(dtype)
    return [
        entrant(
            f"{draft}, {step}",
            pair.target,
            build(pair),
            drafted=drafted,
            backend=bench.attention,
            step=step,
            batch=batch,
        )
        for draft, (drafted, build) in DRAFTS.items()
        for step in steps_of(draft, dtype)
    ]


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
    made = parser("gpu", __doc__, repeats=2)
    made.add_argument("--only", choices=("checks", "speed"), help="one half of it")
    parsed = made.parse_args(arguments)
    options = read(parsed)
    if options is None:
        return 1
    only: str | None = parsed.only
    bench = Bench(options.device, options.quick, options.attention)
    began = time.perf_counter()
    outcomes = [] if only == "speed" else run_checks(bench, checks())
    print(f"\n{time.perf_counter() - began:.0f} s of checks", flush=True)
    groups, notes = ([], []) if only == "checks" else _speed(bench, options)
    print(f"\n{time.perf_counter() - began:.0f} s in all\n")
    report = Report("gpu")
    report.add(environment(options.device))
    if outcomes:
        report.add(outcome_table(outcomes))
    if groups:
        report.add(
            f"Greedy, 64 new tokens, attention by {options.attention}, medians of repetitions in which the contestants take "
            "turns. Ratios are over the faster transformers of the same dtype and batch."
        )
        report.add(speed_table(groups))
        for note in notes:
            report.add(note)
    options.write(report, "gpu")
    return int(not all(outcome.passed for outcome in outcomes))


def _speed(bench: Bench, options: GpuOptions) -> tuple[list[Group], list[str]]:
    cases = greedy_cases()
    groups: list[Group] = []
    notes: list[str] = []
    for name, dtype in DTYPES.items():
        peer = HubPeer(bench.device, dtype)
        for batch in BATCHES:
            # One prompt at a time takes longest; two of them tell enough.
            some = cases[: 1 + batch // 4] if bench.quick else cases[:2] if batch == 1 else cases
            prompts = [[case.prompt for case in some[start : start + batch]] for start in range(0, len(some), batch)]
            half = dtype is torch.bfloat16
            hub, note = hub_entrants(peer, prompts, compiled=half)
            notes += [note] if note else []
            field = [*hub, *contestants(bench, dtype, batch)]
            # Half precision has exact ties, which batches of other shapes may break otherwise: no text is the right one.
            groups.append(measure(name, field, some, batch, options.repeats, bench.device, check=not half))
            del field, hub
            gc.collect()
    return groups, notes


if __name__ == "__main__":
    raise SystemExit(main())
