"""Prompts in graphs: eight ragged prompts through target and draft, breakable graphs against eager passes, on a CUDA card.

``python -m benchmarks.gpu_prefill [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path. The embedded
pair in bfloat16. ``--device cpu --quick`` walks through the same code without a card.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from benchmarks._backends import EAGER, attention, attention_names, runner
from benchmarks._cases import TokenIds, greedy_cases
from benchmarks._goal import Goal
from benchmarks._gpu_options import GpuOptions, parser, read
from benchmarks._pair import Pair, load_pair
from benchmarks._progress import timed
from benchmarks._race import device_wait
from benchmarks._report import Report, Table
from outrider import Engine, EngineOptions, Request, build_engine

__all__ = ["Measured", "goals", "prefill_table", "ragged_prompts"]

TOTALS = (512, 1024, 2048)
STEPS = (EAGER, "breakable")
_SHARES = (20, 18, 16, 14, 12, 10, 6, 4)
"""How many of a hundred tokens each prompt has."""

_WANTED = 1.5
_WARM_UPS = 3


@frozen
class Measured:
    """Median milliseconds of a prefill of ``tokens`` tokens, by ``(attention, step)``, and the first tokens that each gave."""

    tokens: int
    ms: Mapping[tuple[str, str], float]
    first_tokens: Mapping[tuple[str, str], TokenIds]

    def times_eager(self, backend: str) -> float:
        """How many times as fast the graphs are as eager passes with the same attention."""
        eager, breakable = STEPS
        return self.ms[backend, eager] / self.ms[backend, breakable]


def ragged_prompts(total: int) -> tuple[TokenIds, ...]:
    """Eight prompts of very different lengths, of ``total`` tokens together, with the words of the cases."""
    lengths = [total * share // 100 for share in _SHARES]
    lengths[-1] += total - sum(lengths)
    text = [token for case in greedy_cases() for token in case.prompt + case.continuation]
    return tuple(tuple(text[7 * row : 7 * row + length]) for row, length in enumerate(lengths))


def prefill_table(found: Sequence[Measured]) -> Table:
    """One row per size and attention backend."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        for backend in dict.fromkeys(backend for backend, _ in one.ms):
            eager, breakable = ((backend, step) for step in STEPS)
            pairs = zip(one.first_tokens[eager], one.first_tokens[breakable], strict=True)
            rows.append(
                (
                    str(one.tokens),
                    backend,
                    f"{one.ms[eager]:.2f}",
                    f"{one.ms[breakable]:.2f}",
                    f"{one.times_eager(backend):.2f}",
                    f"{sum(a == b for a, b in pairs)} of {len(one.first_tokens[eager])}",
                )
            )
    return Table(
        ("tokens", "attention", "eager ms", "breakable ms", "× eager", "same tokens"), tuple(rows), frozenset({1})
    )


def goals(found: Sequence[Measured], backend: str) -> list[Goal]:
    """What is wanted at each size."""
    return [
        Goal(f"8 prompts, {one.tokens} tokens, {backend}: breakable over eager", _WANTED, one.times_eager(backend))
        for one in found
    ]


def measure(pair: Pair, total: int, backends: Sequence[str], repeats: int) -> Measured:
    """Prefill of target and draft (a chain of 5) as the engine runs it, contestants taking turns. Synchronises."""
    prompts = ragged_prompts(total)
    wait = device_wait(pair.target.stack.spec.device)
    engines: dict[tuple[str, str], Engine] = {}
    for backend in backends:
        for step in STEPS:
            engines[backend, step] = build_engine(
                pair.target,
                pair.chain(5),
                attention=attention(backend),
                runner=runner(step),
                options=EngineOptions(max_batch_size=len(prompts), max_length=512),
            )
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in engines}
    tokens: dict[tuple[str, str], TokenIds] = {}
    for turn in range(_WARM_UPS + repeats):
        for key, engine in engines.items():
            # One new token, which the prefill gives: the rows are free again once it is read.
            order = [engine.submit(Request(prompt, 1, eos_ids=())) for prompt in prompts]
            engine.admit()
            wait()
            began = time.perf_counter()
            engine.prefill()
            wait()
            if turn >= _WARM_UPS:
                seconds[key].append(time.perf_counter() - began)
            given = {emission.request_id: emission.token_ids[0] for emission in engine.read()}
            tokens[key] = tuple(given[request] for request in order)
    for engine in engines.values():
        engine.close()
    return Measured(total, {key: 1e3 * statistics.median(times) for key, times in seconds.items()}, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report where asked."""
    options = read(parser("gpu_prefill", __doc__, repeats=20).parse_args(arguments))
    if options is None:
        return 1
    report = options.report("gpu_prefill")
    report.add(
        "The embedded pair, bfloat16, 8 prompts of 4% to 20% of the tokens: one prefill of target and draft, medians of "
        f"{options.repeats} in which the contestants take turns."
    )
    _measure_all(options, report)
    options.finish(report)
    return 0


def _measure_all(options: GpuOptions, report: Report) -> None:
    pair = load_pair(options.device, torch.bfloat16)
    names = [options.attention, *(name for name in attention_names(options.device) if name != options.attention)]
    gc.collect()
    found: list[Measured] = []
    for total in TOTALS[:1] if options.quick else TOTALS:
        with timed(f"{total} tokens"):
            found.append(measure(pair, total, names, options.repeats))
        report.put("table", prefill_table(found))
        report.put("goals", "\n".join(map(str, goals(found, options.attention))), show=False)
    print("\n".join(map(str, goals(found, options.attention))))


if __name__ == "__main__":
    raise SystemExit(main())
