"""What a command shows beside its results: tables and bars on a terminal, ``key: value`` lines elsewhere, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from attrs import frozen

from outrider.generation.completion import Statistics
from outrider.generation.report import ReportRow, memory_in_words
from outrider.interfaces import CaptureProgress, LoadProgress
from outrider.types import CaptureRecord

__all__ = [
    "Comparison",
    "StatisticsRow",
    "capture_bar",
    "has_room",
    "progress_bar",
    "show_report",
    "show_statistics",
    "statistics_rows",
]

_TABLE_COLUMNS = 60


@frozen
class Comparison:
    """The same prompts without drafting, and how many tokens agreed (``None``: they did not all).

    ``num_skipped``: prompts whose tokens were not compared, since their verifier keeps the distribution at most.
    """

    plain: Statistics
    num_same: int | None
    num_skipped: int = 0


@frozen
class StatisticsRow:
    """One line of the statistics; ``plain`` is the value without drafting."""

    label: str
    value: str
    plain: str = ""


def statistics_rows(
    statistics: Statistics, comparison: Comparison | None = None, finish_reason: str | None = None
) -> list[StatisticsRow]:
    """The statistics in words; what drafting did is left out where nothing drafted."""
    plain = None if comparison is None else comparison.plain
    rows = [
        StatisticsRow("tokens", str(statistics.num_tokens), "" if plain is None else str(plain.num_tokens)),
        StatisticsRow(
            "target passes", str(statistics.num_target_passes), "" if plain is None else str(plain.num_target_passes)
        ),
    ]
    if statistics.draft_depth:
        rows.append(StatisticsRow("mean acceptance length", f"{statistics.mean_acceptance_length:.2f}"))
        shares = " ".join(f"{share:.0%}" for share in statistics.acceptance_by_position)
        rows.append(StatisticsRow("acceptance by position", shares))
    rows += [
        StatisticsRow("seconds", f"{statistics.seconds:.2f}", "" if plain is None else f"{plain.seconds:.2f}"),
        StatisticsRow(
            "tokens/s", f"{statistics.tokens_per_second:.1f}", "" if plain is None else f"{plain.tokens_per_second:.1f}"
        ),
    ]
    if finish_reason is not None:
        rows.append(StatisticsRow("finish reason", finish_reason))
    if comparison is not None:
        rows.append(StatisticsRow("same tokens", _same_tokens(comparison)))
        if statistics.seconds > 0 and comparison.plain.tokens_per_second > 0:
            ratio = statistics.tokens_per_second / comparison.plain.tokens_per_second
            rows.append(StatisticsRow("speed ratio", f"{ratio:.2f}x"))
    return rows


def _same_tokens(comparison: Comparison) -> str:
    same, skipped = comparison.num_same, comparison.num_skipped
    if same is None:
        return "no"
    if not skipped:
        return f"yes, all {same}"
    note = (
        f"not compared for {skipped} sampled {'prompt' if skipped == 1 else 'prompts'}: the verifier does not keep them"
    )
    return f"yes, all {same}; {note}" if same else note


def show_statistics(rows: Sequence[StatisticsRow]) -> None:
    """Write ``rows`` to stderr: a table on a terminal with room for one, else a line each."""
    compared = any(row.plain for row in rows)
    if not has_room(sys.stderr):
        for row in rows:
            print(f"{row.label}: {row.value}", file=sys.stderr)
            if row.plain:
                print(f"{row.label} without drafting: {row.plain}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=compared)
    table.add_column("", style="dim")
    table.add_column("drafting" if compared else "", justify="right")
    if compared:
        table.add_column("without drafting", justify="right")
    for row in rows:
        table.add_row(row.label, row.value, *([row.plain] if compared else []))
    Console(file=sys.stderr, highlight=False, markup=False).print(table)


def show_report(rows: Sequence[ReportRow]) -> None:
    """Write ``rows`` to stderr: a table on a terminal with room for one, else a line each."""
    if not has_room(sys.stderr):
        for row in rows:
            print(row, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column("", style="dim")
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(row.label, row.value)
    Console(file=sys.stderr, highlight=False, markup=False).print(table)


def has_room(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that is wide enough for a table; a narrow one would cut values off."""
    if not stream.isatty():
        return False
    from rich.console import Console

    return Console(file=stream).width >= _TABLE_COLUMNS


@contextmanager
def progress_bar(label: str, total: int | None = None, quiet: bool = False) -> Generator[LoadProgress, None, None]:
    """A bar on stderr that is moved by what this gives; nothing is shown where stderr is no terminal, or if ``quiet``."""
    if quiet or not sys.stderr.isatty():

        def ignore(done: int, total: int) -> None:
            del done, total

        yield ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Results on stdout must not pass through the bar's console, which writes to stderr.
    with Progress(
        *columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(label, total=total)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move


@contextmanager
def capture_bar() -> Generator[CaptureProgress, None, None]:
    """A bar on stderr with the newest graph, its memory and that of all; nothing is shown where stderr is no terminal."""
    if not sys.stderr.isatty():

        def ignore(done: int, total: int, captured: Sequence[CaptureRecord]) -> None:
            del done, total, captured

        yield ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("capturing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    nbytes = 0
    with Progress(*columns, console=Console(file=sys.stderr, markup=False), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move(done: int, total: int, captured: Sequence[CaptureRecord]) -> None:
            nonlocal nbytes
            nbytes += sum(record.nbytes for record in captured)
            shown = f"{memory_in_words(nbytes)} in all"
            if captured:
                newest = captured[-1]
                shown = f"{newest.phase.value}, {newest.size}: {memory_in_words(newest.nbytes)}; {shown}"
            bar.update(task, completed=done, total=total, description=shown)

        yield move
