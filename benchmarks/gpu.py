"""Speed of the embedded pair on a CUDA card: every draft on the steps of the ladder, beside transformers.

``python -m benchmarks.gpu [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path (``scripts/gpu`` does
it); see ``--help``. ``benchmarks.gpu_checks`` tells whether what is measured is right. ``--device cpu --quick`` walks through
the same code without a card.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks._backends import EAGER, GRAPHS, WHOLE_ROUND
from benchmarks._cases import groups_of, measured_cases
from benchmarks._gpu_bench import Bench
from benchmarks._gpu_options import GpuOptions, parser, read
from benchmarks._hub import HubPeer
from benchmarks._pair import Pair
from benchmarks._race import WrongTextError
from benchmarks._report import Report
from benchmarks._speed import Entrant, Group, entrant, hub_entrants, measure, speed_table
from outrider.interfaces import DrafterBuilder

__all__ = ["BATCHES", "DTYPES", "SINGLES", "contestants", "steps_of"]

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BATCHES = (1, 8)
SINGLES = 1
"""Of prompts one at a time the first tells enough."""

OFF, TREE = "drafting off", "tree 4x5, 15 tokens"

DRAFTS: Mapping[str, tuple[int, Callable[[Pair], DrafterBuilder | None]]] = {
    OFF: (0, lambda _: None),
    "chain 3": (3, lambda pair: pair.chain(3)),
    "chain 5": (5, lambda pair: pair.chain(5)),
    TREE: (15, lambda pair: pair.tree(4, 5, 15)),
}
"""What is drafted, by name: how many tokens, and by what."""


def steps_of(draft: str, dtype: torch.dtype) -> tuple[str, ...]:
    """How ``draft`` is run: eagerly and as a whole round; in between too, or not at all, where that tells most for its time."""
    half = dtype is torch.bfloat16
    if draft == "chain 5" or (half and draft != TREE):
        return (EAGER, *GRAPHS)
    return (EAGER, WHOLE_ROUND) if half or draft in (OFF, TREE) else ()


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report where asked."""
    options = read(parser("gpu", __doc__, repeats=2).parse_args(arguments))
    if options is None:
        return 1
    report = options.report("gpu")
    report.add(
        f"Greedy, 64 new tokens, attention by {options.attention}, medians of repetitions in which the contestants take "
        "turns. Ratios are over the faster transformers of the same dtype and batch. 'Capture s' of the compiled "
        "transformers is what its first answer took; `scripts/gpu` fills the compiler's cache beforehand."
    )
    wrong = _speed(options, report)
    options.finish(report)
    return int(wrong)


def _speed(options: GpuOptions, report: Report) -> bool:
    """Put what is measured into ``report``, group by group; whether some text was wrong."""
    bench = Bench(options.device, options.quick, options.attention)
    groups: list[Group] = []
    notes: list[str] = []
    wrong = False
    for name, dtype in DTYPES.items():
        peer = HubPeer(bench.device, dtype)
        half = dtype is torch.bfloat16
        for batch in BATCHES:
            some = measured_cases(batch, SINGLES, quick=options.quick)
            hub, note = hub_entrants(peer, groups_of(some, batch), compiled=half)
            notes += [note] if note else []
            field = [*hub, *contestants(bench, dtype, batch)]
            # Half precision has exact ties, which batches of other shapes may break otherwise: no text is the right one.
            try:
                groups.append(measure(name, field, some, batch, options.repeats, bench.device, check=not half))
                print(f"{speed_table(groups[-1:])}\n", flush=True)
                report.put("speed", speed_table(groups), show=False)
            except WrongTextError as error:
                wrong = True
                notes.append(f"{name}, batch {batch}: {error}")
            if notes:
                report.put("notes", "\n\n".join(notes), show=False)
            del field, hub
            gc.collect()
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
