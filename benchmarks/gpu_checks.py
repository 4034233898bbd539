"""Correctness of the embedded pair on a CUDA card: what must hold before its speed is worth a word.

``python -m benchmarks.gpu_checks [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path (``scripts/gpu``
does it); see ``--help``. Every check runs even when one fails; the exit status tells. ``--device cpu --quick`` walks
through the same code without a card.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._gpu_bench import Bench
from benchmarks._gpu_checks import Outcome, checks, run_checks
from benchmarks._gpu_options import parser, read
from benchmarks._report import Table

__all__ = ["outcome_table"]


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
    """Check, print, and write the report where asked."""
    options = read(parser("gpu_checks", __doc__).parse_args(arguments))
    if options is None:
        return 1
    report = options.report("gpu_checks")
    outcomes: list[Outcome] = []
    for outcome in run_checks(Bench(options.device, options.quick, options.attention), checks()):
        outcomes.append(outcome)
        # Each was printed when it ended, in full.
        report.put("outcomes", outcome_table(outcomes), show=False)
    options.finish(report)
    return int(not all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
