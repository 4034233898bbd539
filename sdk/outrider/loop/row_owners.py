"""`RowOwners`: which request holds which row. Rows stay dense: those that run, those whose prompts are to run, none."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen
from torch import Tensor

from outrider.interfaces import Drafter, PageAllocator, TokenConstraint
from outrider.loop.prompts import PrefillPrompt
from outrider.loop.rows import RowSetup, RowStore
from outrider.loop.track import RequestTrack
from outrider.types import RequestId
from outrider.types.outputs import TOKENS_ONLY, OutputWants

__all__ = ["Admission", "Batch", "RowOwners"]


@define(eq=False)
class Admission:
    """A request that has a row and pages, and what will be written to the row when its prompt ends.

    ``num_done``: tokens of the prompt that were run. ``states``: their hidden states, where the request wants them all.
    """

    track: RequestTrack
    prompt: PrefillPrompt
    setup: RowSetup
    num_done: int = 0
    states: list[Tensor] = field(factory=list[Tensor])


@frozen(eq=False)
class Batch:
    """Some requests in the order of their rows, and what of them the host must know to launch them.

    ``wants``: everything that any of them wants. ``constraints``: by place in ``tracks``.
    """

    tracks: tuple[RequestTrack, ...]
    request_ids: tuple[RequestId, ...]
    wants: OutputWants
    constraints: Mapping[int, TokenConstraint]

    @classmethod
    def of(cls, tracks: tuple[RequestTrack, ...]) -> Batch:
        """What is the same for every launch of ``tracks``."""
        wants = TOKENS_ONLY
        for track in tracks:
            if track.request.wants is not TOKENS_ONLY:
                wants = wants | track.request.wants
        return cls(
            tracks,
            tuple(track.request_id for track in tracks),
            wants,
            {place: track.constraint for place, track in enumerate(tracks) if track.constraint is not None},
        )


class RowOwners:
    """Hands rows to requests and takes them back.

    Rows of those admitted stand empty until their prompts end, so moving their requests moves nothing but pages. They keep
    the order in which they came, so that prompts end from the first of their rows on.
    """

    def __init__(self, rows: RowStore, pages: PageAllocator, drafter: Drafter) -> None:
        self._rows = rows
        self._pages = pages
        self._drafter = drafter
        self._running: list[RequestTrack] = []
        self._batch: Batch | None = None
        self._by_id: dict[RequestId, RequestTrack] = {}
        self.admitted: list[Admission] = []
        """Those whose prompts have yet to be run to the end, as they came; read-only for others."""

    @property
    def num_running(self) -> int:
        """Requests whose prompts were run to the end."""
        return len(self._running)

    @property
    def num_rows(self) -> int:
        """Rows that requests hold: also the number of the next one."""
        return len(self._running) + len(self.admitted)

    @property
    def running(self) -> Batch:
        """The requests that run; the same object until they change."""
        if self._batch is None:
            self._batch = Batch.of(tuple(self._running))
        return self._batch

    def find(self, request_id: RequestId) -> RequestTrack | None:
        """The request, if it holds a row."""
        return self._by_id.get(request_id)

    def admit(self, admission: Admission) -> None:
        """Note who holds the next row; its pages are reserved."""
        self._by_id[admission.track.request_id] = admission.track
        self.admitted.append(admission)

    def start(self, batch: Batch) -> None:
        """The first of those admitted, which ``batch`` is of, run from now on."""
        self._running += batch.tracks
        self._batch = None
        del self.admitted[: len(batch.tracks)]

    def release(self, *tracks: RequestTrack) -> None:
        """Take rows back; those that are left stay dense.

        The last of those that run fill the holes, so nobody is moved twice, or moved and then ended. Those admitted close up.
        """
        if not tracks:
            return
        for track in tracks:
            del self._by_id[track.request_id]
            self._pages.release(track.row)
        num_before = len(self._running)
        running = [track for track in self._running if track.request_id in self._by_id]
        if len(running) < num_before:
            self._batch = None
            rows = range(len(running))
            holes = sorted({*rows} - {track.row for track in running})
            outside = sorted((track for track in running if track.row not in rows), key=_row_of, reverse=True)
            for track, row in zip(outside, holes, strict=True):
                self._rows.move_row(track.row, row)
                self._drafter.move_row(track.row, row)
                self._move(track, row)
            self._running = sorted(running, key=_row_of)
            for row in range(len(running), num_before):
                self._rows.clear_row(row)
        self.admitted = [admission for admission in self.admitted if admission.track.request_id in self._by_id]
        for row, admission in enumerate(self.admitted, len(running)):
            if admission.track.row != row:
                self._move(admission.track, row)

    def _move(self, track: RequestTrack, row: int) -> None:
        """Give ``track`` and its pages ``row``, which nobody holds."""
        self._pages.move_row(track.row, row)
        track.row = row


def _row_of(track: RequestTrack) -> int:
    return track.row
