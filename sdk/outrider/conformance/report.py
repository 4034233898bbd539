"""The outcome of a conformance run: one result per check."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from attrs import define, field, frozen

from outrider.errors import ConformanceError, Problems

__all__ = ["CheckResult", "ConformanceReport", "Faults", "run_checks"]


@frozen
class CheckResult:
    """One check: its name, and every fault it found, each with what to do. No fault: passed."""

    name: str
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.faults


@frozen
class ConformanceReport:
    """The results of all checks of ``subject``; prints as a list."""

    subject: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(result.passed for result in self.results)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(result.name for result in self.results if not result.passed)

    def raise_failures(self) -> None:
        """Raise when a check failed.

        Raises:
            ConformanceError: names every failed check with its faults and what to do.
        """
        with Problems(f"{self.subject} does not keep its contract", ConformanceError) as problems:
            for result in self.results:
                for fault in result.faults:
                    problems.add(f"[{result.name}] {fault}")

    def __str__(self) -> str:
        lines = [f"{self.subject}: {sum(r.passed for r in self.results)} of {len(self.results)} checks passed"]
        for result in self.results:
            lines.append(f"  {'ok  ' if result.passed else 'FAIL'} {result.name}")
            lines += [f"         {fault}" for fault in result.faults]
        return "\n".join(lines)


@define
class Faults:
    """Collects what one check finds."""

    found: list[str] = field(factory=list[str])

    def add(self, message: str) -> None:
        """Note one fault."""
        self.found.append(message)

    def expect(self, condition: bool, message: str) -> bool:
        """Note ``message`` unless ``condition``; returns ``condition``."""
        if not condition:
            self.found.append(message)
        return condition

    @contextmanager
    def catching(self) -> Generator[None]:
        """Turn an exception of the implementation into a fault."""
        try:
            yield
        except Exception as error:  # whatever the implementation raises is its fault, and the next check goes on
            kind = type(error)
            message = str(error) if isinstance(error, ConformanceError) else f"raised {kind.__qualname__}: {error}"
            self.found.append(message)


def run_checks(
    subject: str, checks: Sequence[tuple[str, Callable[[Faults], None]]], raise_failures: bool
) -> ConformanceReport:
    """Run ``checks`` in order, all of them, in inference mode; with ``raise_failures`` a fault raises at the end."""
    results: list[CheckResult] = []
    for name, check in checks:
        faults = Faults()
        with torch.inference_mode(), faults.catching():
            check(faults)
        results.append(CheckResult(name, tuple(dict.fromkeys(faults.found))))
    report = ConformanceReport(subject, tuple(results))
    if raise_failures:
        report.raise_failures()
    return report
