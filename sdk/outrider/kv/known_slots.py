"""Slots of sequence indices that the host knows, as in prompts: most of the arithmetic is done before it asks the device."""

from __future__ import annotations

from array import array

from torch import Tensor

from outrider.interfaces.kv import TRASH_PAGE

__all__ = ["KnownSlots"]


class KnownSlots:
    """Collects runs of sequence indices for the rows of a page table ``[rows, pages_per_row]``."""

    def __init__(self, pages_per_row: int, page_size: int) -> None:
        self._pages_per_row = pages_per_row
        self._page_size = page_size
        self.entries: array[int] = array("q")
        """For each index the place in the flattened table where its page stands."""
        self.offsets: array[int] = array("q")
        """For each index its place in its page."""

    def add(self, row: int, start: int, end: int) -> None:
        """Indices start..end-1 of ``row``, which must lie within the table."""
        size = self._page_size
        assert 0 <= start <= end <= self._pages_per_row * size, "an index past the page table"
        pages = range(row * self._pages_per_row + start // size, row * self._pages_per_row + -(-end // size))
        skipped = start % size
        wanted = slice(skipped, skipped + end - start)
        self.entries.extend([page for page in pages for _ in range(size)][wanted])
        self.offsets.extend(([*range(size)] * len(pages))[wanted])

    def slots(self, page_table: Tensor, entries: Tensor, offsets: Tensor) -> Tensor:
        """Cache slots ``[T]`` int64, given what was collected ``[T]`` on the device of ``page_table``; as `slots_of`.

        ``offsets`` is overwritten with them and returned. Device only, no synchronisation.
        """
        pages = page_table.take(entries).clamp_(min=TRASH_PAGE)
        return offsets.add_(pages, alpha=self._page_size)
