"""`PagedMemory`: the KV memory an engine makes for itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch

from outrider.errors import CapacityError
from outrider.kv.paged import PagedKVCache
from outrider.kv.pages import PagePool
from outrider.types import AttentionSpec

__all__ = ["PagedMemory"]


class PagedMemory:
    """A `PagePool` and caches of its pages.

    Raises:
        ConfigurationError: a size below its minimum.
        CapacityError: the device has not that much memory.
    """

    def __init__(self, num_rows: int, pages_per_row: int, num_pages: int, page_size: int, device: torch.device) -> None:
        self._num_pages = num_pages
        self._device = device
        self._sizes = f"{num_rows} rows of {pages_per_row} pages, {num_pages} pages of {page_size} tokens in all"
        with self._enough_memory():
            self._pages = PagePool(num_rows, pages_per_row, num_pages, page_size, device)

    @property
    def pages(self) -> PagePool:
        """Who owns which page."""
        return self._pages

    def cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> PagedKVCache:
        """Fresh zeroed memory for ``layers`` in these pages."""
        with self._enough_memory():
            return PagedKVCache(layers, self._num_pages, self._pages.page_size, dtype, self._device)

    @contextmanager
    def _enough_memory(self) -> Generator[None, None, None]:
        """Say what an allocation that fails was for, and what to do; PyTorch raises a RuntimeError."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            reason = (str(error).splitlines() or ["no memory"])[0]
            raise CapacityError(
                f"{self._device} has no memory for the KV of {self._sizes} ({reason}); lower max_batch_size, max_length or "
                "page_size, or draft less"
            ) from error
