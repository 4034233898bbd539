"""What capturing before the first request did: graphs, time, memory, and what was left to run otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from outrider.types.runner import CaptureRecord, Phase, Refused, Role

__all__ = ["CaptureSummary", "CaptureTotals", "Unserved", "totals_by_kind"]


@frozen
class CaptureTotals:
    """Several graphs taken together: how many, how long capturing them took, and the device memory they hold."""

    graphs: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@frozen
class Unserved:
    """A phase that no graph of the kind ``refused.by`` serves at ``sizes`` of the sizes that were run, and why."""

    phase: Phase
    refused: Refused
    sizes: int = 1


@frozen
class CaptureSummary:
    """What `Engine.capture` did.

    ``sizes``: how many sizes were run. ``captured``: the graphs that came of them. ``unserved``: what runs eagerly
    nonetheless. ``left_out``: sizes that the ``role`` leaves to other workers. ``seconds``: wall-clock time of all of it, the
    runs that are no captures included.
    """

    runner: str
    role: Role
    sizes: int
    captured: tuple[CaptureRecord, ...]
    unserved: tuple[Unserved, ...]
    left_out: int
    seconds: float

    @property
    def nbytes(self) -> int:
        """Device memory that the captures took."""
        return sum(record.nbytes for record in self.captured)

    @property
    def by_kind(self) -> Mapping[str, CaptureTotals]:
        """The graphs by kind: ``round``, ``phase``, ``breakable`` or ``media``."""
        return totals_by_kind(self.captured)


def totals_by_kind(records: Iterable[CaptureRecord]) -> dict[str, CaptureTotals]:
    """The totals of ``records`` by `CaptureRecord.by`, in the order in which the kinds came."""
    totals: dict[str, CaptureTotals] = {}
    for record in records:
        so_far = totals.get(record.by, CaptureTotals())
        totals[record.by] = evolve(
            so_far,
            graphs=so_far.graphs + 1,
            seconds=so_far.seconds + record.seconds,
            nbytes=so_far.nbytes + record.nbytes,
        )
    return totals
