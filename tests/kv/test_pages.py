from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider._torch import int_rows
from outrider.errors import CapacityError, ConfigurationError
from outrider.interfaces import NUM_RESERVED_PAGES, TRASH_PAGE, PageAllocator
from outrider.kv import PagePool, slots_of, slots_of_rows

CPU = torch.device("cpu")
ROWS, PER_ROW, NUM_PAGES, PAGE_SIZE = 4, 5, 13, 3


class Pool(RuleBasedStateMachine):
    """Any sequence of calls: no page is owned twice, none is lost, and the table says what the pool says."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(ROWS, PER_ROW, NUM_PAGES, PAGE_SIZE, CPU)
        self.wanted: dict[int, int] = {}

    def snapshot(self) -> tuple[list[tuple[int, ...]], int, list[list[int]]]:
        owned = [self.pool.pages_of(row) for row in range(ROWS)]
        return owned, self.pool.num_free_pages, int_rows(self.pool.page_table)

    @rule(row=st.integers(0, ROWS - 1), num_tokens=st.integers(0, PER_ROW * PAGE_SIZE))
    def reserve(self, row: int, num_tokens: int) -> None:
        before = self.snapshot()
        count = -(-num_tokens // PAGE_SIZE)
        if row in self.wanted:
            with pytest.raises(CapacityError, match="already; release it first"):
                self.pool.reserve(row, num_tokens)
            assert self.snapshot() == before
        elif self.pool.reserve(row, num_tokens):
            assert count <= before[1]
            self.wanted[row] = count
        else:
            assert count > before[1]
            assert self.snapshot() == before

    @rule(row=st.integers(0, ROWS - 1))
    def release(self, row: int) -> None:
        self.pool.release(row)
        self.wanted.pop(row, None)

    @precondition(lambda self: bool(self.wanted))
    @rule(data=st.data())
    def move_row(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.wanted)))
        destination = data.draw(st.integers(0, ROWS - 1))
        before = self.snapshot()
        if destination in self.wanted and destination != source:
            with pytest.raises(CapacityError, match="release it first"):
                self.pool.move_row(source, destination)
            assert self.snapshot() == before
            return
        self.pool.move_row(source, destination)
        assert self.pool.pages_of(destination) == before[0][source]
        self.wanted[destination] = self.wanted.pop(source)

    @invariant()
    def every_page_has_one_place(self) -> None:
        owned, free, table = self.snapshot()
        assert [len(pages) for pages in owned] == [self.wanted.get(row, 0) for row in range(ROWS)]
        flat = [page for pages in owned for page in pages]
        assert len(set(flat)) == len(flat)
        assert all(NUM_RESERVED_PAGES <= page < NUM_PAGES for page in flat)
        assert len(flat) + free == NUM_PAGES - NUM_RESERVED_PAGES
        assert table == [[*pages, *[0] * (PER_ROW - len(pages))] for pages in owned]


TestPool = Pool.TestCase


def test_everything_returns_and_can_be_reserved_again() -> None:
    pool: PageAllocator = PagePool(3, 4, 6, 2, CPU)
    table = pool.page_table
    assert pool.reserve(0, 8)
    assert not pool.reserve(1, 1)
    pool.release(0)
    assert not table.any()
    assert pool.reserve(1, 7)
    assert sorted(int_rows(table)[1]) == [2, 3, 4, 5]
    assert pool.page_table is table


def test_can_ever_hold_is_the_smaller_of_row_and_memory() -> None:
    assert PagePool(1, 4, 100, 2, CPU).can_ever_hold(8)
    assert not PagePool(1, 4, 100, 2, CPU).can_ever_hold(9)
    tight = PagePool(1, 4, 5, 2, CPU)
    assert tight.can_ever_hold(6)
    assert not tight.can_ever_hold(7)
    assert tight.reserve(0, 6)
    assert tight.can_ever_hold(6)  # whoever holds pages now


def test_impossible_reservations_name_every_fault_and_change_nothing() -> None:
    pool = PagePool(2, 3, 9, 4, CPU)
    with pytest.raises(CapacityError, match="2 problems") as caught:
        pool.reserve(2, 13)
    for part in ("cannot reserve 13 slots for row 2", "rows 0..1", "4 pages of 4, a row has at most 3 (12 slots)"):
        assert part in str(caught.value)
    with pytest.raises(CapacityError, match="must not be negative"):
        pool.reserve(0, -1)
    with pytest.raises(CapacityError, match="row 1 holds no pages"):
        pool.move_row(1, 0)
    assert pool.reserve(1, 4)
    with pytest.raises(CapacityError, match=r"rows 0\.\.1"):
        pool.move_row(1, 2)
    assert pool.pages_of(1) == (2,)
    with pytest.raises(ConfigurationError, match="4 problems"):
        PagePool(0, 0, 2, 0, CPU)


@given(page_size=st.integers(1, 7), data=st.data())
def test_slots_equal_the_definition(page_size: int, data: st.DataObject) -> None:
    """Page ``i // page_size`` of the row, place ``i % page_size``; the trash page wherever the row has no page."""
    pages_held = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    width, rows = 4, len(pages_held)
    order = torch.randperm(width * rows, generator=torch.Generator().manual_seed(rows)) + NUM_RESERVED_PAGES
    table = order.view(rows, width).clone()
    for row, held in enumerate(pages_held):
        table[row, held:] = 0
    low, high = -2 * page_size, (width + 2) * page_size
    size = data.draw(st.integers(1, 4))
    flat = data.draw(st.lists(st.integers(low, high), min_size=rows * size, max_size=rows * size))
    expected: list[int] = []
    for place, index in enumerate(flat):
        row = place // size
        held = 0 <= index < pages_held[row] * page_size
        page = int(table[row, index // page_size]) if held else TRASH_PAGE
        expected.append(page * page_size + index % page_size)
    indices = torch.tensor(flat)
    assert torch.equal(slots_of(table, indices.view(rows, size), page_size).flatten(), torch.tensor(expected))
    row_ids = torch.arange(rows).repeat_interleave(size)
    shuffled = torch.randperm(len(flat), generator=torch.Generator().manual_seed(size))
    got = slots_of_rows(table, row_ids[shuffled], indices[shuffled], page_size)
    assert torch.equal(got, torch.tensor(expected)[shuffled])


@pytest.mark.gpu
def test_reserving_does_not_synchronise() -> None:
    device = torch.device("cuda")
    pool = PagePool(3, 4, 16, 2, device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert pool.reserve(0, 8)
        assert pool.reserve(1, 3)
        pool.move_row(1, 2)
        pool.release(0)
        assert pool.reserve(0, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int_rows(pool.page_table) == [
        [*pool.pages_of(row), *[0] * (4 - len(pool.pages_of(row)))] for row in range(3)
    ]
