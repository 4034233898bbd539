"""Acceptance lengths by temperature, drafter, verifier and way of proposing, for the embedded pair on this CPU.

``python -m benchmarks.acceptance`` from the checkout; see ``--help``. Each cell is the mean number of tokens per
verification round, bonus included, over the eight prompts and as many seeds as the wanted standard error takes. The
error is that over seeds, for these prompts; at temperature 0 there is nothing random.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import frozen

from benchmarks._cases import Case, greedy_cases
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._pair import Pair, load_pair
from benchmarks._report import Report, Table, environment
from benchmarks._verdicts import VERIFIERS, Recipe, ratio_and_error, recipes
from outrider import Engine, EngineOptions, Request, SamplingParams, build_engine
from outrider.types import RequestId
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["Plan", "measure"]

TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
SEEDS_AT_ONCE = 4


@frozen
class Plan:
    """How much is measured. At least ``min_seeds``, then more until the standard error is reached, at most ``max_seeds``."""

    temperatures: tuple[float, ...] = TEMPERATURES
    standard_error: float = 0.025
    min_seeds: int = 8
    max_seeds: int = 48
    max_new_tokens: int = MAX_NEW_TOKENS


@frozen
class Cell:
    """One mean acceptance length, its standard error, and how many seeds it took."""

    mean: float
    error: float
    num_seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.error:.3f}" if self.error else f"{self.mean:.2f}"


def measure(pair: Pair, recipe: Recipe, cases: Sequence[Case], plan: Plan) -> list[Cell]:
    """One cell per temperature of ``plan`` for a recipe that is not left out."""
    engine = build_engine(
        pair.target,
        recipe.drafter.builder(pair, recipe.mode),
        attention=SdpaBackend(),
        runner=EagerRunner(),
        verifier=VERIFIERS[recipe.verifier](),
        options=EngineOptions(max_batch_size=SEEDS_AT_ONCE * len(cases), max_length=256),
    )
    return [_cell(engine, cases, temperature, plan) for temperature in plan.temperatures]


def _cell(engine: Engine, cases: Sequence[Case], temperature: float, plan: Plan) -> Cell:
    runs: list[tuple[int, int]] = []
    while True:
        count = 1 if temperature == 0 else SEEDS_AT_ONCE
        runs += _run_seeds(engine, cases, temperature, range(len(runs), len(runs) + count), plan.max_new_tokens)
        mean, error = ratio_and_error(runs)
        enough = len(runs) >= plan.min_seeds and error <= plan.standard_error
        if temperature == 0 or enough or len(runs) >= plan.max_seeds:
            return Cell(mean, error, len(runs))


def _run_seeds(
    engine: Engine, cases: Sequence[Case], temperature: float, seeds: range, max_new_tokens: int
) -> list[tuple[int, int]]:
    """Tokens and rounds of each seed, summed over the prompts."""
    seed_of: dict[RequestId, int] = {}
    for seed in seeds:
        sampling = SamplingParams(temperature=temperature, seed=seed)
        for case in cases:
            seed_of[engine.submit(Request(case.prompt, max_new_tokens, sampling))] = seed
    lengths: dict[int, list[int]] = {seed: [] for seed in seeds}
    while engine.has_work:
        for emission in engine.step():
            if emission.accept_length is not None:
                lengths[seed_of[emission.request_id]].append(emission.accept_length)
    return [(sum(found), len(found)) for found in lengths.values()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance", description=__doc__)
    parser.add_argument(
        "--standard-error", type=float, default=0.025, help="wanted for each cell (±0.05 at 95%%: 0.025)"
    )
    parser.add_argument("--max-seeds", type=int, default=48, help="seeds after which a cell is taken as it is")
    parser.add_argument("--quick", action="store_true", help="two temperatures, few seeds, short texts")
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    markdown: Path | None = options.markdown
    plan = Plan(standard_error=options.standard_error, max_seeds=options.max_seeds)
    if options.quick:
        plan = Plan((0.0, 1.0), standard_error=1.0, min_seeds=4, max_seeds=4, max_new_tokens=24)

    torch.set_num_threads(1)
    pair, cases = load_pair(torch.device("cpu")), greedy_cases()
    rows: list[tuple[str, ...]] = []
    worst, most_seeds = 0.0, 0
    for recipe in recipes():
        cells = [] if recipe.left_out else measure(pair, recipe, cases, plan)
        shown = tuple(map(str, cells)) or ("–",) * len(plan.temperatures)
        rows.append((recipe.drafter.name, recipe.verifier, recipe.mode.value, *shown, recipe.left_out))
        print(" · ".join(rows[-1]), flush=True)
        worst = max([worst, *(cell.error for cell in cells)])
        most_seeds = max([most_seeds, *(cell.num_seeds for cell in cells)])
    report = Report("acceptance")
    report.add(environment(torch.device("cpu")))
    report.add(
        f"Tokens per verification round, bonus included, ± standard error over seeds; {len(cases)} prompts, up to "
        f"{plan.max_new_tokens} new tokens, up to {most_seeds} seeds a cell, largest standard error {worst:.3f}."
    )
    columns = ("drafter", "verifier", "proposes", *(f"T = {value:g}" for value in plan.temperatures), "why left out")
    report.add(Table(columns, tuple(rows), frozenset({0, 1, 2, len(columns) - 1})))
    if markdown is not None:
        report.write(markdown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
