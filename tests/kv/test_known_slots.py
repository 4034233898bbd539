"""Slots of indices that the host knows: equal to those that the device finds on its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider._torch import uploaded
from outrider.kv import KnownSlots, PagePool, slots_of_rows
from tests.support.operators import Operators

CPU = torch.device("cpu")
PAGES = 5


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]], list[int]]:
    """A page size, runs (row, start, end) of a table of 3 rows, and the slots that each row owns."""
    size = draw(st.integers(1, 5))
    places = st.integers(0, PAGES * size)
    found = draw(st.lists(st.tuples(st.integers(0, 2), places, places), min_size=1, max_size=4))
    ordered = [(row, min(one, two), max(one, two)) for row, one, two in found]
    return size, [*ordered, (0, 0, 1)], draw(st.lists(places, min_size=3, max_size=3))


@given(runs())
def test_the_slots_are_those_that_the_device_finds(case: tuple[int, list[tuple[int, int, int]], list[int]]) -> None:
    """Indices past a row's own pages, and rows that own none, give the same slot of the trash page."""
    size, found, owned = case
    pool = PagePool(3, PAGES, 3 * PAGES + 2, size, CPU)
    for row, count in enumerate(owned):
        assert pool.reserve(row, count)
    known = KnownSlots(PAGES, size)
    for row, start, end in found:
        known.add(row, start, end)
    slots = known.slots(pool.page_table, uploaded(known.entries, CPU), uploaded(known.offsets, CPU))
    rows = torch.tensor([row for row, start, end in found for _ in range(start, end)])
    indices = torch.tensor([index for _, start, end in found for index in range(start, end)])
    assert torch.equal(slots, slots_of_rows(pool.page_table, rows, indices, size))


def test_an_index_past_the_table_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="past the page table"):
        KnownSlots(2, 4).add(0, 5, 9)


def test_the_device_computes_little() -> None:
    table = torch.tensor([[2, 3], [4, 0]])
    known = KnownSlots(2, 4)
    known.add(1, 1, 6)
    entries, offsets = uploaded(known.entries, CPU), uploaded(known.offsets, CPU)
    with Operators() as operators:
        slots = known.slots(table, entries, offsets)
    assert torch.equal(slots, torch.tensor([17, 18, 19, 4, 5]))
    assert operators.number == 3
