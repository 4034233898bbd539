"""Where the time of a round goes at batch 1 on this CPU: the two models' forward passes, and everything else.

``python -m benchmarks.profile_round`` from the checkout; see ``--help``. The parts of the loop are wrapped by timers of
the same interfaces; each moment is charged to one part. Prefill is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from attrs import evolve, frozen

from benchmarks._cases import Case, greedy_cases
from benchmarks._ledger import Ledger, Part
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._pair import load_pair
from benchmarks._report import Report, Table, environment
from benchmarks._timed import TimedAttention, TimedBuilder, TimedDraft, TimedStack, TimedVerifier
from outrider import ChainBuilder, Engine, EngineOptions, Request, TreeBuilder, build_engine
from outrider.interfaces import BoundDraft, DrafterBuilder
from outrider.verification import ExactVerifier
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["SHAPES", "Profile", "profile"]

WANTED_SHARE = 0.8

SHAPES: dict[str, Callable[[BoundDraft], DrafterBuilder]] = {
    "tree 4x5, 16 drafted tokens": lambda draft: TreeBuilder(draft, width=4, depth=5, num_tokens=16),
    "chain 5": lambda draft: ChainBuilder(draft, length=5),
}


@frozen(eq=False)
class Profile:
    """``seconds`` by part over ``rounds`` rounds; ``plain_ms`` is what a round takes without timers."""

    ledger: Ledger
    rounds: int
    plain_ms: float

    @property
    def timed_ms(self) -> float:
        """What a round takes with timers."""
        return 1e3 * self.ledger.total / self.rounds

    def table(self) -> Table:
        """Parts by time, forward passes marked."""
        total = self.ledger.total
        ordered = sorted(self.ledger.seconds.items(), key=lambda item: -item[1])
        rows = [
            (
                part.value,
                "forward" if part.is_forward else "rest",
                f"{1e3 * used / self.rounds:.3f}",
                f"{used / total:.1%}",
            )
            for part, used in ordered
        ]
        planned = self.ledger.seconds[Part.PLANNING] / total
        share = self.ledger.forward_share
        rows.append(("**forward passes**", "", f"{self.timed_ms * share:.3f}", f"{share:.1%}"))
        rows.append(
            ("**with attention plans**", "", f"{self.timed_ms * (share + planned):.3f}", f"{share + planned:.1%}")
        )
        return Table(("part of a round", "kind", "ms", "share"), tuple(rows), frozenset({0, 1}))


def profile(shape: str, cases: Sequence[Case], repeats: int) -> Profile:
    """Run ``cases`` one after the other with and without timers, taking turns, ``repeats`` times."""
    pair = load_pair(torch.device("cpu"))
    ledger = Ledger()
    target = evolve(pair.target, stack=TimedStack(pair.target.stack, ledger))
    make = SHAPES[shape]
    options = EngineOptions(max_batch_size=1)
    timed = build_engine(
        target,
        TimedBuilder(make(TimedDraft(pair.eagle3, ledger, target.stack)), ledger),
        attention=TimedAttention(SdpaBackend(), ledger, pair.target.stack.spec.num_layers),
        runner=EagerRunner(),
        verifier=TimedVerifier(ExactVerifier(), ledger),
        options=options,
    )
    plain = build_engine(pair.target, make(pair.eagle3), attention=SdpaBackend(), runner=EagerRunner(), options=options)
    for engine in (plain, timed):
        _rounds(engine, cases[0], Ledger())
    ledger.clear()
    rounds = 0
    plain_ms: list[float] = []
    for _ in range(repeats):
        for case in cases:
            started, count = _rounds(plain, case, Ledger())
            plain_ms.append(1e3 * started / count)
            rounds += _rounds(timed, case, ledger)[1]
    return Profile(ledger, rounds, statistics.mean(plain_ms))


def _rounds(engine: Engine, case: Case, ledger: Ledger) -> tuple[float, int]:
    """Seconds that the rounds of one prompt take, and their number; charged to ``ledger`` where the parts use it."""
    engine.submit(Request(case.prompt, MAX_NEW_TOKENS))
    engine.admit()
    kept = dict(ledger.seconds)
    engine.prefill()
    engine.read()
    ledger.seconds = kept  # prefill is no round
    rounds = 0
    started = time.perf_counter()
    while engine.has_work:
        with ledger.within(Part.HOST):
            engine.run_round()
            ledger.turn_to(Part.HOST)
            engine.read()
        rounds += 1
    return time.perf_counter() - started, rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the tables where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_round", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often the eight prompts are run")
    parser.add_argument("--quick", action="store_true", help="two prompts, once")
    parser.add_argument(
        "--strict", action="store_true", help=f"exit with 1 below {WANTED_SHARE:.0%}% in forward passes"
    )
    parser.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    options = parser.parse_args(arguments)
    markdown: Path | None = options.markdown

    torch.set_num_threads(1)
    cases = greedy_cases()[: 2 if options.quick else None]
    report = Report("profile")
    report.add(environment(torch.device("cpu")))
    shares: list[float] = []
    for shape in SHAPES:
        found = profile(shape, cases, 1 if options.quick else options.repeats)
        shares.append(found.ledger.forward_share)
        verdict = "reached" if shares[-1] >= WANTED_SHARE else "MISSED"
        report.add(
            f"**{shape}**, batch 1, greedy, {found.rounds} rounds: {found.timed_ms:.2f} ms a round with timers, "
            f"{found.plain_ms:.2f} ms without. In forward passes: {shares[-1]:.1%}, wanted {WANTED_SHARE:.0%}: {verdict}."
        )
        report.add(found.table())
    if markdown is not None:
        report.write(markdown)
    return int(bool(options.strict) and min(shares) < WANTED_SHARE)


if __name__ == "__main__":
    raise SystemExit(main())
