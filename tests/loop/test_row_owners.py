"""Who holds which row: dense at all times, with the pages of each request behind it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.builders import ChainBuilder
from outrider.drafting.none import NoDrafter
from outrider.kv import PagePool
from outrider.loop.build import EngineOptions
from outrider.loop.prompts import PrefillPrompt
from outrider.loop.row_owners import Admission, Batch, RowOwners
from outrider.loop.rows import RowSetup, RowStore
from outrider.loop.track import RequestTrack
from outrider.types import RequestId
from outrider.types.request import Request
from tests.support.engines import engine_of, run
from tests.support.toy_drafts import self_pair
from tests.support.toy_target import CPU

ROWS = 6
PROMPT = (1, 2, 3)


class World:
    """Rows, pages and owners, and what each request should find in its row: its number as the token limit."""

    def __init__(self) -> None:
        self.pages = PagePool(ROWS, 3, 40, 2, CPU)
        self.rows = RowStore(ROWS, 200, 2, 1, 50, self.pages, CPU)
        self.owners = RowOwners(self.rows, self.pages, NoDrafter(ROWS, CPU))
        self.admitted: list[RequestTrack] = []
        self.running: list[RequestTrack] = []
        self.pages_of: dict[RequestId, tuple[int, ...]] = {}

    def admit(self, number: int) -> None:
        row = self.owners.num_rows
        if row == ROWS:
            return
        assert self.pages.reserve(row, 1 + number % 6)
        track = RequestTrack(RequestId(number), Request(PROMPT), row, 100 + number, total=3)
        self.owners.admit(Admission(track, PrefillPrompt(PROMPT), RowSetup(PROMPT, track.max_total, (), 0)))
        self.admitted.append(track)
        self.pages_of[track.request_id] = self.pages.pages_of(row)

    def start(self, most: int) -> None:
        """The prompts of as many end, the first that came; others stay."""
        started = self.admitted[:most]
        if started:
            self.rows.set_rows(started[0].row, [each.setup for each in self.owners.admitted[:most]])
        self.owners.start(Batch.of(tuple(started)))
        self.running += started
        del self.admitted[:most]

    def release(self, places: frozenset[int]) -> None:
        held = [*self.running, *self.admitted]
        gone = [track for place, track in enumerate(held) if place in places]
        self.owners.release(*gone)
        self.running = [track for track in self.running if track not in gone]
        self.admitted = [track for track in self.admitted if track not in gone]

    def check(self) -> None:
        """Every request where it should be, and nothing anywhere else."""
        assert set(self.owners.running.tracks) == set(self.running)
        assert [each.track for each in self.owners.admitted] == self.admitted, "as they came"
        assert [track.row for track in self.owners.running.tracks] == list(range(len(self.running)))
        first = self.owners.num_running
        assert [each.track.row for each in self.owners.admitted] == list(range(first, self.owners.num_rows))
        for track in (*self.running, *self.admitted):
            assert self.owners.find(track.request_id) is track
            assert self.pages.pages_of(track.row) == self.pages_of[track.request_id]
        state = self.rows.view(0, ROWS, 8)
        limits = [track.max_total for track in self.owners.running.tracks]
        assert torch.equal(state.max_totals[:first], torch.tensor(limits, dtype=torch.int64))
        assert not state.finished[:first].any()
        assert state.finished[first:].all()
        assert not state.lengths[first:].any()
        assert not any(self.pages.pages_of(row) for row in range(self.owners.num_rows, ROWS))
        assert torch.equal(state.page_table[:first], self.pages.page_table[:first])
        assert not state.page_table[first:].any(), "a round has no page of what does not run"
        assert not self.pages.page_table[self.owners.num_rows :].any()


ENDING = st.frozensets(st.integers(0, ROWS - 1), max_size=3)


@given(st.lists(st.one_of(st.just("admit"), st.integers(1, ROWS), ENDING), max_size=30))
def test_rows_stay_dense_whoever_comes_and_goes(steps: list[str | int | frozenset[int]]) -> None:
    world = World()
    for number, step in enumerate(steps):
        match step:
            case str():
                world.admit(number)
            case int():
                world.start(step)
            case places:
                world.release(places)
        world.check()


def test_nobody_is_moved_that_ends_in_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole batch that ends together moves nothing; one request that goes on is moved once."""
    moved: list[tuple[int, int]] = []
    move = RowStore.move_row

    def noted(rows: RowStore, source: int, destination: int) -> None:
        moved.append((source, destination))
        move(rows, source, destination)

    monkeypatch.setattr(RowStore, "move_row", noted)
    target, draft = self_pair(seed=5)
    prompts = ((0, 5, 9, 22), (0, 31, 4), (0, 7, 7, 3, 2), (0, 12))
    engine = engine_of(target, ChainBuilder(draft, 3), EngineOptions(4, page_size=4))
    run(engine, [Request(prompt, 9) for prompt in prompts])
    assert moved == []
    run(engine, [Request(prompt, 30 if place == 3 else 9) for place, prompt in enumerate(prompts)])
    assert moved == [(3, 0)]
