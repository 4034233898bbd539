"""`PagedMemory`: the KV memory an engine makes for itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.kv.paged import PagedKVCache
from outrider.kv.pages import PagePool
from outrider.types import AttentionSpec

__all__ = ["PagedMemory"]


class PagedMemory:
    """A `PagePool` and caches of its pages.

    Raises:
        ConfigurationError: a size below its minimum.
    """

    def __init__(self, num_rows: int, pages_per_row: int, num_pages: int, page_size: int, device: torch.device) -> None:
        self._num_pages = num_pages
        self._device = device
        self._pages = PagePool(num_rows, pages_per_row, num_pages, page_size, device)

    @property
    def pages(self) -> PagePool:
        """Who owns which page."""
        return self._pages

    def cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> PagedKVCache:
        """Fresh zeroed memory for ``layers`` in these pages."""
        return PagedKVCache(layers, self._num_pages, self._pages.page_size, dtype, self._device)
