"""Speed at the cost of an 8B model, on a CUDA card: the embedded pair widened to Llama-3.1-8B's shapes, in bfloat16.

``python -m benchmarks.gpu_8b [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path. The widened pair
writes the text of the small one with real acceptance (`benchmarks.widen`); bfloat16 rounds its longer sums differently, so
its text may part from float32's. ``--device cpu --quick`` walks through the same code with a small widening.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks._bandwidth import copy_bandwidth, weight_bytes_per_round
from benchmarks._cases import TokenIds, greedy_cases
from benchmarks._race import Answer, Contestant, Result, device_wait, race
from benchmarks._report import Report, Table, environment
from benchmarks.widen import LLAMA_8B, SMALL, WidenSpec, build, checkpoints
from outrider import ChainBuilder, EngineOptions, SpeculativeModel
from outrider.drafting.builders import DrafterBuilder
from outrider.interfaces import BoundDraft, GraphRunner, Target
from outrider_backends.cuda_graph import CudaGraphRunner
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["speed_table"]

MAX_NEW_TOKENS = 64
CHAINS = (0, 3, 5)
RUNNERS: dict[str, Callable[[], GraphRunner]] = {"eager": EagerRunner, "round graph": CudaGraphRunner}


def contestants(target: Target, draft: BoundDraft, batch: int) -> list[tuple[Contestant, int]]:
    """Plain decoding and chains under each runner, with the length of the chain."""
    made: list[tuple[Contestant, int]] = []
    for length in CHAINS:
        builder = ChainBuilder(draft, length) if length else None
        for name, runner in RUNNERS.items():
            what = f"chain {length}" if length else "drafting off"
            made.append((_contestant(f"{what}, {name}", target, builder, runner, batch), length))
    return made


def speed_table(results: Sequence[tuple[Result, float]]) -> Table:
    """One row per batch size and contestant. Each result comes with the floor of its rounds in milliseconds."""
    rows = tuple(
        (
            str(result.batch),
            result.name,
            f"{result.tokens_per_second:.0f}",
            f"{result.acceptance_length:.2f}",
            f"{result.ms_per_pass:.2f}",
            f"{floor:.2f}",
            f"{floor / result.ms_per_pass:.0%}",
            f"±{result.spread:.0%}",
        )
        for result, floor in results
    )
    columns = ("batch", "contestant", "tokens/s", "acceptance length", "ms/round", "floor ms", "of the floor", "spread")
    return Table(columns, rows, frozenset({1}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_8b", description=__doc__)
    parser.add_argument("out_dir", type=Path, nargs="?", help="folder in which to leave gpu_8b.md")
    parser.add_argument("--device", default="cuda", help="where to run")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions; medians are given")
    parser.add_argument("--quick", action="store_true", help="a small widening, two prompts, one repetition")
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    out_dir: Path | None = options.out_dir
    markdown: Path | None = options.markdown
    device = torch.device(str(options.device))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false; --device cpu --quick walks through the same code")
        return 1
    torch.set_num_threads(1)
    quick = bool(options.quick)
    results = _measure(SMALL if quick else LLAMA_8B, device, quick, int(options.repeats))
    report = Report("gpu_8b")
    report.add(environment(device))
    report.add(
        "The embedded pair widened to the shapes of Llama-3.1-8B, bfloat16, greedy, 64 new tokens, medians of repetitions in "
        'which the contestants take turns. "Floor": bytes of weights that a round reads over measured copy bandwidth.'
    )
    report.add(speed_table(results))
    for path in (markdown, None if out_dir is None else out_dir / "gpu_8b.md"):
        if path is not None:
            report.write(path)
    return 0


def _measure(spec: WidenSpec, device: torch.device, quick: bool, repeats: int) -> list[tuple[Result, float]]:
    dtype = torch.bfloat16
    bandwidth = copy_bandwidth(device, 1 << 24 if quick else 4 << 30)
    wide_target, wide_draft = checkpoints(spec, dtype, device)
    floors = {
        length: weight_bytes_per_round(wide_target, wide_draft if length else None, length).floor_ms(bandwidth)
        for length in CHAINS
    }
    target, draft = build(spec, device, dtype)
    cases = greedy_cases()
    results: list[tuple[Result, float]] = []
    for batch in (1, 8):
        field = contestants(target, draft, batch)
        some = cases[:2] if quick else cases[:3] if batch == 1 else cases
        timed = race(
            [one for one, _ in field],
            some,
            batch,
            1 if quick else repeats,
            check=False,
            wait=device_wait(device),
        )
        results += [(result, floors[length]) for result, (_, length) in zip(timed, field, strict=True)]
    return results


def _contestant(
    name: str, target: Target, builder: DrafterBuilder | None, runner: Callable[[], GraphRunner], batch: int
) -> Contestant:
    model = SpeculativeModel(
        target,
        builder,
        attention=SdpaBackend(),
        runner=runner,
        options=EngineOptions(max_batch_size=batch, max_length=512),
    )

    def generate(prompts: Sequence[TokenIds]) -> Answer:
        done = model.generate_batch(prompts, max_new_tokens=MAX_NEW_TOKENS).completions
        return Answer(
            token_ids=tuple(each.token_ids for each in done),
            num_passes=max(each.statistics.num_target_passes for each in done),
            accept_lengths=tuple(length for each in done for length in each.accept_lengths),
        )

    return Contestant(name, generate)


if __name__ == "__main__":
    raise SystemExit(main())
