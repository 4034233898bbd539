"""Speed on this CPU, one thread, float32: transformers, plain decoding, chains and trees, taking turns in one process.

``python -m benchmarks.cpu`` from the checkout; see ``--help``. Every contestant's text is compared with the reference
before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks._cases import greedy_cases
from benchmarks._goal import Goal
from benchmarks._hub import HubPeer
from benchmarks._outrider import outrider_contestant
from benchmarks._pair import load_pair
from benchmarks._process import LoadMemory, import_seconds, load_memory
from benchmarks._race import Contestant, Result, race
from benchmarks._report import Report, Table, environment
from benchmarks._vllm import vllm_contestant, vllm_is_installed

__all__ = ["goals", "speed_table"]

BASELINE = "transformers"
OFF = "drafting off"
CHAIN = "chain "
CHAIN_LENGTHS = (1, 2, 3, 4, 5, 6)
TREES = ((2, 4, 6), (4, 5, 15), (8, 6, 31))
VLLM_LENGTHS = (0, 3)


class Field:
    """Everybody, loaded once."""

    def __init__(self, quick: bool) -> None:
        cpu = torch.device("cpu")
        pair = load_pair(cpu)
        hub = HubPeer(cpu, torch.float32)
        peers = [hub.plain(BASELINE)]
        if vllm_is_installed():
            peers += [vllm_contestant(length) for length in VLLM_LENGTHS]
        lengths = (3, 5) if quick else CHAIN_LENGTHS
        trees = TREES[1:2] if quick else TREES
        self._single = hub.prompt_lookup(5)
        self._all = [
            *peers,
            outrider_contestant(OFF, pair, None),
            *(outrider_contestant(f"{CHAIN}{length}", pair, pair.chain(length)) for length in lengths),
            *(
                outrider_contestant(f"tree {width}x{depth}, {drafted} tokens", pair, pair.tree(width, depth, drafted))
                for width, depth, drafted in trees
            ),
            outrider_contestant("static tree, 10 tokens", pair, pair.static_tree()),
            outrider_contestant("EAGLE-1 chain 4", pair, pair.eagle1_chain(4)),
        ]

    def at(self, batch: int) -> list[Contestant]:
        """Those who can answer ``batch`` prompts at once; transformers looks up drafts for one prompt only."""
        first, *others = self._all
        return [first, self._single, *others] if batch == 1 else [first, *others]


def speed_table(results: Sequence[Result]) -> Table:
    """One row per contestant; the first is what the others are compared with."""
    baseline = results[0].tokens_per_second
    return Table(
        ("contestant", "tokens/s", "× transformers", "acceptance length", "ms/round", "spread"),
        tuple(
            (
                result.name,
                f"{result.tokens_per_second:.0f}",
                f"{result.tokens_per_second / baseline:.2f}",
                f"{result.acceptance_length:.2f}",
                f"{result.ms_per_pass:.2f}",
                f"±{result.spread:.0%}",
            )
            for result in results
        ),
    )


def best_chain(results: Sequence[Result]) -> Result:
    """The fastest chain of the EAGLE-3 draft."""
    return max((one for one in results if one.name.startswith(CHAIN)), key=lambda one: one.tokens_per_second)


def goals(results: Sequence[Result], batch: int) -> list[Goal]:
    """What is wanted at this batch size, against what was found."""
    speed = {result.name: result.tokens_per_second for result in results}
    best = best_chain(results)
    found = [
        Goal(
            f"batch {batch}, {best.name} (the best chain) over transformers",
            3.0 if batch == 1 else 2.0,
            best.tokens_per_second / speed[BASELINE],
        )
    ]
    if batch == 1:
        found.append(Goal(f"batch {batch}, {best.name} over drafting off", 1.25, best.tokens_per_second / speed[OFF]))
    return found


def process_lines(repeats: int) -> str:
    """Import time and memory of loading."""
    lines = [f"- `import outrider` takes {1e3 * import_seconds(repeats):.0f} ms where torch is imported already."]
    memory = load_memory()
    if memory is not None:
        mib = 2**20
        lines.append(
            f"- Loading the target and both drafts in float32: {memory.weight_bytes / mib:.1f} MiB of weights; resident "
            f"memory rises by {memory.first_bytes / mib:.1f} MiB at the peak ({_share(memory, memory.first_bytes)}), by "
            f"{memory.again_bytes / mib:.1f} MiB when the same is loaded again ({_share(memory, memory.again_bytes)}: no "
            "pages of libraries; those of the mapped files count)."
        )
    return "\n".join(lines)


def _share(memory: LoadMemory, peak: int) -> str:
    return f"{peak / memory.weight_bytes:.2f} × the weights"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the tables where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions; medians are given")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="prompts answered at once")
    parser.add_argument("--quick", action="store_true", help="fewer contestants, one repetition")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    repeats: int = 1 if quick else options.repeats
    batches: list[int] = options.batches
    markdown: Path | None = options.markdown

    torch.set_num_threads(1)
    cases = greedy_cases()
    report = Report("cpu")
    report.add(environment(torch.device("cpu")))
    field = Field(quick)
    found: list[Goal] = []
    for batch in batches:
        results = race(field.at(batch), cases, batch, repeats)
        report.add(
            f"**Batch {batch}**: {len(cases)} prompts, greedy, medians of {repeats}; every text is the reference's."
        )
        report.add(speed_table(results))
        found += goals(results, batch)
    report.add(process_lines(1 if quick else 5))
    report.add("\n".join(map(str, found)))
    if markdown is not None:
        report.write(markdown)
    return int(bool(options.strict) and not all(goal.reached for goal in found))


if __name__ == "__main__":
    raise SystemExit(main())
