"""Contestants on a card with what their graphs cost, and the table that compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import field, frozen

from benchmarks._backends import EAGER, attention, runner
from benchmarks._cases import Case, TokenIds
from benchmarks._hub import HubPeer
from benchmarks._outrider import model_contestant
from benchmarks._progress import tell
from benchmarks._race import Contestant, Result, agreement, device_wait, race
from benchmarks._report import Table
from outrider import EngineOptions, SpeculativeModel
from outrider.interfaces import DrafterBuilder, Target
from outrider.types import DispatchReport

__all__ = [
    "TRANSFORMERS",
    "Entrant",
    "Group",
    "Row",
    "best_transformers",
    "entrant",
    "hub_entrants",
    "measure",
    "speed_table",
]

TRANSFORMERS = "transformers"
"""What the names of its contestants begin with."""

_MAX_LENGTH = 512


@frozen(eq=False)
class Entrant:
    """A contestant. ``drafted``: tokens a round drafts. ``report``: what its graphs cost. ``compile_seconds``: of compiling."""

    contestant: Contestant
    drafted: int = 0
    report: DispatchReport | None = None
    compile_seconds: float | None = None

    @property
    def capture_seconds(self) -> float | None:
        """Time that capturing or compiling has taken up to now; ``None`` where there is neither."""
        if self.report is None:
            return self.compile_seconds
        return sum(record.seconds for record in self.report.captured) if self.report.captured else None

    @property
    def graph_bytes(self) -> int | None:
        """Device memory of its graphs up to now; ``None`` where it has none, or does not tell."""
        if self.report is None or not self.report.captured:
            return None
        return sum(record.nbytes for record in self.report.captured)


def entrant(
    name: str,
    target: Target,
    builder: DrafterBuilder | None,
    *,
    drafted: int,
    backend: str,
    step: str = EAGER,
    batch: int = 8,
) -> Entrant:
    """``target`` with drafts by ``builder``, run as ``step`` of `benchmarks._backends` says, on an engine of its own."""
    options = EngineOptions(max_batch_size=batch, max_length=_MAX_LENGTH)
    model = SpeculativeModel(
        target, builder, attention=attention(backend), runner=lambda: runner(step), options=options
    )
    return Entrant(model_contestant(name, model), drafted, model.engine.report)


def hub_entrants(peer: HubPeer, prompts: Sequence[Sequence[TokenIds]], *, compiled: bool) -> tuple[list[Entrant], str]:
    """transformers with its default cache and, ``compiled``, with a static one; what is to be said where that fails.

    ``prompts``: the groups that will be asked for.
    """
    found = [Entrant(peer.plain(TRANSFORMERS))]
    if compiled:
        try:
            made = peer.compiled(prompts, f"{TRANSFORMERS}, static, compiled")
        except Exception as error:  # whatever a compiler raises: the others are measured all the same
            why = str(error).partition("\n")[0]
            return found, f"transformers did not compile: {type(error).__name__}: {why}"
        tell(f"{made.contestant.name}: compiled, {made.first_seconds:.1f} s")
        found.append(Entrant(made.contestant, compile_seconds=made.first_seconds))
    return found, ""


@frozen
class Row:
    """A result with what it cost; ``floor_ms``: the least time of a round, where the weights do not stay in a cache."""

    result: Result
    floor_ms: float | None = None
    capture_seconds: float | None = None
    graph_bytes: int | None = None


@frozen
class Group:
    """Rows that are compared with each other; ``name``: their dtype; ``same_as``: the tokens that theirs are compared with."""

    name: str
    batch: int
    rows: tuple[Row, ...]
    same_as: tuple[TokenIds, ...] = field(repr=False)


def measure(
    name: str,
    entrants: Sequence[Entrant],
    cases: Sequence[Case],
    batch: int,
    repeats: int,
    device: torch.device,
    floors: Mapping[int, float] | None = None,
    *,
    check: bool = False,
) -> Group:
    """Race ``entrants``; ``floors``: milliseconds by the number of drafted tokens. Texts are compared with the first one's.

    Raises:
        WrongTextError: with ``check``, texts that are not those of ``cases``.
    """
    tell(f"{name} batch {batch}: {len(entrants)} contestants".lstrip())
    field = [one.contestant for one in entrants]
    results = race(field, cases, batch, repeats, check=check, wait=device_wait(device), tell=tell)
    rows = tuple(
        Row(result, None if floors is None else floors[one.drafted], one.capture_seconds, one.graph_bytes)
        for one, result in zip(entrants, results, strict=True)
    )
    return Group(name, batch, rows, results[0].answer.token_ids)


def best_transformers(group: Group) -> float:
    """Tokens a second of the fastest of its contestants, none of which drafts; NaN where none takes part."""
    speeds = [row.result.tokens_per_second for row in group.rows if row.result.name.startswith(TRANSFORMERS)]
    return max(speeds, default=float("nan"))


def speed_table(groups: Sequence[Group]) -> Table:
    """One row per group and contestant. Ratios are over the fastest transformers of the group.

    Names of groups and floors are there where any group has them.
    """
    has_names = any(group.name for group in groups)
    has_floors = any(row.floor_ms is not None for group in groups for row in group.rows)
    columns = (
        *(("dtype",) if has_names else ()),
        *("batch", "contestant", "tokens/s", "× transformers", "acceptance length", "ms/round"),
        *(("floor ms", "of the floor") if has_floors else ()),
        *("capture s", "graphs MiB", "spread", "same tokens"),
    )
    rows = tuple(
        (*((group.name,) if has_names else ()), *_cells(group, row, has_floors))
        for group in groups
        for row in group.rows
    )
    return Table(columns, rows, frozenset({0, 2} if has_names else {1}))


def _cells(group: Group, row: Row, has_floors: bool) -> tuple[str, ...]:
    result = row.result
    floors: tuple[str, ...] = ()
    if has_floors:
        floor = row.floor_ms
        floors = ("", "") if floor is None else (f"{floor:.2f}", f"{floor / result.ms_per_pass:.0%}")
    return (
        str(group.batch),
        result.name,
        f"{result.tokens_per_second:.0f}",
        f"{result.tokens_per_second / best_transformers(group):.2f}",
        f"{result.acceptance_length:.2f}",
        f"{result.ms_per_pass:.2f}",
        *floors,
        "" if row.capture_seconds is None else f"{row.capture_seconds:.1f}",
        "" if row.graph_bytes is None else f"{row.graph_bytes / 2**20:.0f}",
        f"±{result.spread:.0%}",
        f"{agreement(result.answer, group.same_as):.0%}",
    )
