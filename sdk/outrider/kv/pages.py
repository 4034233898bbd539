"""`PagePool`: which pages belong to which row, and the slots of sequence indices."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from outrider._torch import staged
from outrider.errors import CapacityError, ConfigurationError, Problems
from outrider.interfaces.kv import NULL_PAGE, NUM_RESERVED_PAGES, TRASH_PAGE

__all__ = ["PagePool", "slots_of", "slots_of_rows"]


class PagePool:
    """Hands out pages ``NUM_RESERVED_PAGES .. num_pages - 1`` to rows; a page belongs to one row at most.

    Bookkeeping is on the host. The page table ``[num_rows, pages_per_row]`` int64 lives on ``device`` and is changed
    in place, in stream order and without synchronisation, so work already queued still sees the table it was queued
    with.

    Raises:
        ConfigurationError: a size below its minimum; all at once.
    """

    def __init__(self, num_rows: int, pages_per_row: int, num_pages: int, page_size: int, device: torch.device) -> None:
        with Problems("page pool", ConfigurationError) as problems:
            for name, value, least in (
                ("num_rows", num_rows, 1),
                ("pages_per_row", pages_per_row, 1),
                ("num_pages", num_pages, NUM_RESERVED_PAGES + 1),
                ("page_size", page_size, 1),
            ):
                if value < least:
                    problems.add(f"{name} is {value}; it must be {least} or more")
        self._page_size = page_size
        self._num_pages = num_pages
        self._table = torch.zeros(num_rows, pages_per_row, dtype=torch.int64, device=device)
        self._device = device
        self._rows = self._table.unbind(0)
        self._owned: dict[int, list[int]] = {}
        # Popped from the end: low pages first, and those released last are used next.
        self._free = list(range(num_pages - 1, NUM_RESERVED_PAGES - 1, -1))

    @property
    def page_table(self) -> Tensor:
        """``[rows, P]`` int64 on the device, `NULL_PAGE` past a row's pages; changed in place."""
        return self._table

    @property
    def page_size(self) -> int:
        """Slots per page."""
        return self._page_size

    @property
    def num_free_pages(self) -> int:
        """Pages that no row owns."""
        return len(self._free)

    def pages_of(self, row: int) -> tuple[int, ...]:
        """The pages of ``row`` in sequence order; empty when it holds none."""
        return tuple(self._owned.get(row, ()))

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether an otherwise empty memory could hold a request of ``num_tokens`` slots."""
        return self._pages_for(num_tokens) <= min(self._table.shape[1], self._num_pages - NUM_RESERVED_PAGES)

    def reserve(self, row: int, num_tokens: int) -> bool:
        """Give ``row`` pages for ``num_tokens`` slots; false, with nothing changed, when too few are free now.

        Raises:
            CapacityError: the row does not exist or holds pages already, or a row can never have so many pages;
                nothing is changed.
        """
        count = self._pages_for(num_tokens)
        num_rows, pages_per_row = self._table.shape
        with Problems(f"cannot reserve {num_tokens} slots for row {row}", CapacityError) as problems:
            if not 0 <= row < num_rows:
                problems.add(f"the pool has rows 0..{num_rows - 1}")
            if row in self._owned:
                problems.add(f"the row holds {len(self._owned[row])} pages already; release it first")
            if num_tokens < 0:
                problems.add("the number of slots must not be negative")
            if count > pages_per_row:
                problems.add(
                    f"that is {count} pages of {self._page_size}, a row has at most {pages_per_row} "
                    f"({pages_per_row * self._page_size} slots); shorten the request or build a larger pool"
                )
        if count > len(self._free):
            return False
        pages = self._free[: -count - 1 : -1]
        padded = array("q", pages + [NULL_PAGE] * (pages_per_row - count))
        self._rows[row].copy_(staged(padded, self._device), non_blocking=True)
        del self._free[len(self._free) - count :]
        self._owned[row] = pages
        return True

    def release(self, row: int) -> None:
        """Take all pages back from ``row``; nothing happens when it holds none."""
        pages = self._owned.pop(row, None)
        if pages is None:
            return
        self._free.extend(reversed(pages))
        self._rows[row].zero_()

    def move_row(self, source: int, destination: int) -> None:
        """Hand the pages of ``source`` to ``destination``, which must hold none; device copies only.

        Raises:
            CapacityError: ``destination`` does not exist or holds pages, or ``source`` holds none; nothing is changed.
        """
        if source == destination:
            return
        with Problems(f"cannot move the pages of row {source} to row {destination}", CapacityError) as problems:
            if not 0 <= destination < self._table.shape[0]:
                problems.add(f"the pool has rows 0..{self._table.shape[0] - 1}")
            if destination in self._owned:
                problems.add(f"row {destination} holds {len(self._owned[destination])} pages; release it first")
            if source not in self._owned:
                problems.add(f"row {source} holds no pages; reserve some first")
        self._owned[destination] = self._owned.pop(source)
        self._rows[destination].copy_(self._rows[source])
        self._rows[source].zero_()

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)


def slots_of(page_table: Tensor, indices: Tensor, page_size: int) -> Tensor:
    """Cache slots ``[B, Q]`` int64 of sequence ``indices [B, Q]`` int64 under ``page_table [B, P]`` int64.

    An index that no page of the row holds (negative, past the table, or past the row's pages) gives a slot of the
    trash page, so the result may be written to. Device only, no synchronisation, capture-safe.
    """
    pages = indices.div(page_size, rounding_mode="floor")
    inside = pages.clamp(0, page_table.shape[1] - 1)
    return _slots(page_table.gather(1, inside), pages == inside, indices, page_size)


def slots_of_rows(page_table: Tensor, rows: Tensor, indices: Tensor, page_size: int) -> Tensor:
    """Cache slots ``[T]`` int64 of sequence ``indices [T]`` of table rows ``rows [T]``, both int64.

    As `slots_of`, for a flattened ragged batch.
    """
    pages = indices.div(page_size, rounding_mode="floor")
    inside = pages.clamp(0, page_table.shape[1] - 1)
    return _slots(page_table[rows, inside], pages == inside, indices, page_size)


def _slots(pages: Tensor, exists: Tensor, indices: Tensor, page_size: int) -> Tensor:
    # NULL_PAGE is below TRASH_PAGE: where a row has no page, the product with `exists` and the clamp give trash.
    owned = (pages * exists).clamp_(min=TRASH_PAGE)
    return torch.add(indices.remainder(page_size), owned, alpha=page_size)
