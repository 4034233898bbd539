"""Speed at the cost of an 8B model, on a CUDA card: the embedded pair widened to Llama-3.1-8B's shapes, in bfloat16.

``python -m benchmarks.gpu_8b [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path. The widened pair
writes the text of the small one with real acceptance (`benchmarks.widen`); bfloat16 rounds its longer sums differently, so
its text may part from float32's. Then what capturing every default size takes, for it and for the small pair.
``--device cpu --quick`` walks through the same code with a small widening; ``--no-compiled`` saves the compiling of
transformers, over a minute.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence

import torch

from benchmarks._backends import EAGER, GRAPHS, WHOLE_ROUND, attention_names
from benchmarks._bandwidth import copy_bandwidth, weight_bytes_per_round
from benchmarks._capture import Capturing, capture_goals, capture_roles, capture_table, saved
from benchmarks._cases import groups_of, measured_cases
from benchmarks._goal import Goal
from benchmarks._gpu_options import GpuOptions, parser, read
from benchmarks._hub import HubPeer
from benchmarks._pair import load_pair
from benchmarks._progress import timed
from benchmarks._report import Report
from benchmarks._speed import Entrant, Group, best_transformers, entrant, hub_entrants, measure, speed_table
from benchmarks._widen_files import WideCheckpoint
from benchmarks.widen import LLAMA_8B, SMALL, checkpoints, load
from outrider import ChainBuilder, EngineOptions
from outrider.interfaces import BoundDraft, DrafterBuilder, LoadOptions, Target
from outrider.types import Role

__all__ = ["entrants", "goals", "name_of"]

CHAINS = (0, 3, 5)
BATCHES = (1, 8)
SINGLES = 2
"""Prompts one at a time take longest; two of them tell enough."""

DTYPE = torch.bfloat16
_OFF_TOKENS_PER_SECOND = 170.0
_TIMES_TRANSFORMERS = 3.0


def name_of(length: int, step: str, backend: str = "") -> str:
    """What a row is called."""
    drafts = f"chain {length}" if length else "drafting off"
    return ", ".join(part for part in (drafts, step, backend) if part)


def entrants(target: Target, draft: BoundDraft, batch: int, backend: str, others: Sequence[str] = ()) -> list[Entrant]:
    """Plain decoding and chains, eagerly and on every step of the ladder; whole rounds also with the backends ``others``."""

    def one(length: int, step: str, with_backend: str) -> Entrant:
        name = name_of(length, step, "" if with_backend == backend else with_backend)
        drafter = _builder(draft, length)
        return entrant(name, target, drafter, drafted=length, backend=with_backend, step=step, batch=batch)

    found = [one(length, step, backend) for length in CHAINS for step in (EAGER, *GRAPHS)]
    return found + [one(length, WHOLE_ROUND, other) for other in others for length in (0, CHAINS[-1])]


def goals(groups: Sequence[Group]) -> list[Goal]:
    """What is wanted of whole rounds at batch 1: of plain decoding, and of the longest chain against transformers."""
    found: list[Goal] = []
    for group in groups:
        speed = {row.result.name: row.result.tokens_per_second for row in group.rows}
        if group.batch == 1:
            off = name_of(0, WHOLE_ROUND)
            found.append(Goal(f"batch 1, {off}, tokens/s", _OFF_TOKENS_PER_SECOND, speed[off]))
        chain = name_of(CHAINS[-1], WHOLE_ROUND)
        ratio = speed[chain] / best_transformers(group)
        wanted = _TIMES_TRANSFORMERS if group.batch == 1 else None
        found.append(Goal(f"batch {group.batch}, {chain}, over the best transformers", wanted, ratio))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the reports where asked."""
    made = parser("gpu_8b", __doc__, repeats=2)
    made.add_argument("--no-compiled", action="store_true", help="leave compiled transformers out")
    parsed = made.parse_args(arguments)
    options = read(parsed)
    if options is None:
        return 1
    spec = SMALL if options.quick else LLAMA_8B
    report = options.report("gpu_8b")
    with timed("the pair widened and loaded"):
        wide_target, wide_draft = checkpoints(spec, DTYPE, options.device)
        floors = _floors(wide_target, wide_draft, options)
        target, draft = load(wide_target, wide_draft, LoadOptions(options.device, DTYPE))
    report.add(
        f"The embedded pair widened to the shapes of {spec.name}, bfloat16, greedy, 64 new tokens, attention by "
        f"{options.attention}, medians of repetitions in which the contestants take turns. Ratios are over the faster "
        "transformers of this table."
    )
    _speed(report, wide_target, target, draft, floors, options, compiled=not parsed.no_compiled)
    options.finish(report)
    _report_capturing(spec.name, target, draft, options)
    return 0


def _floors(target: WideCheckpoint, draft: WideCheckpoint, options: GpuOptions) -> Mapping[int, float]:
    """Milliseconds that a round's weights take at the bandwidth of copies, by the length of its chain."""
    bandwidth = copy_bandwidth(options.device, 1 << 24 if options.quick else 4 << 30)
    return {
        length: weight_bytes_per_round(target, draft if length else None, length).floor_ms(bandwidth)
        for length in CHAINS
    }


def _speed(
    report: Report,
    wide_target: WideCheckpoint,
    target: Target,
    draft: BoundDraft,
    floors: Mapping[int, float],
    options: GpuOptions,
    *,
    compiled: bool,
) -> None:
    with timed("transformers loaded"):
        peer = HubPeer(options.device, DTYPE, wide_target)
    others = [name for name in attention_names(options.device) if name != options.attention]
    groups: list[Group] = []
    notes: list[str] = []
    for batch in BATCHES:
        some = measured_cases(batch, SINGLES, quick=options.quick)
        hub, note = hub_entrants(peer, groups_of(some, batch), compiled=compiled)
        notes += [note] if note else []
        field = [*hub, *entrants(target, draft, batch, options.attention, others)]
        groups.append(measure("", field, some, batch, options.repeats, options.device, floors))
        print(f"{speed_table(groups[-1:])}\n", flush=True)
        report.put("speed", speed_table(groups), show=False)
        if notes:
            report.put("notes", "\n\n".join(notes), show=False)
        report.put("goals", "\n".join(map(str, goals(groups))))
        del field, hub
        gc.collect()


def _report_capturing(name: str, target: Target, draft: BoundDraft, options: GpuOptions) -> None:
    """All default sizes by role, with the longest chain."""
    report = options.report("gpu_capture")
    pair = load_pair(options.device, DTYPE)
    small = EngineOptions(max_batch_size=2, max_length=128, max_prefill_tokens=128) if options.quick else None
    report.add(
        f"`Engine.capture` of all default sizes: rounds of up to 8 requests and prompts of up to 2048 tokens, bfloat16, chain "
        f'{CHAINS[-1]}, attention by {options.attention}. "Card MiB": what the card had less afterwards, static buffers and '
        "workspaces included."
    )
    found: list[Capturing] = []
    for what, on, drafts in ((name, target, draft), ("the pair", pair.target, pair.eagle3)):
        roles = (Role.BOTH,) if options.quick and what == name else tuple(Role)
        with timed(f"all default sizes of {what} captured"):
            found += capture_roles(what, on, _builder(drafts, CHAINS[-1]), options.attention, small, roles)
        report.put("table", capture_table(found))
        report.put("goals", "\n".join([*saved(found), *map(str, capture_goals(found))]))
    options.finish(report)


def _builder(draft: BoundDraft, length: int) -> DrafterBuilder | None:
    return ChainBuilder(draft, length) if length else None


if __name__ == "__main__":
    raise SystemExit(main())
