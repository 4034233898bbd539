"""`KVCache`, `PageAllocator` and `KVMemory`: where keys and values live; an engine can bring its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.types import AttentionSpec

__all__ = ["NULL_PAGE", "NUM_RESERVED_PAGES", "TRASH_PAGE", "KVCache", "KVMemory", "PageAllocator"]

NULL_PAGE = 0
"""Page that page tables are padded with: always zeros, never written."""

TRASH_PAGE = 1
"""Page that padding rows write to: never read."""

NUM_RESERVED_PAGES = 2


class KVCache(Protocol):
    """Keys and values of one model in fixed pages; slot s is place ``s % page_size`` of page ``s // page_size``."""

    @property
    @abstractmethod
    def page_size(self) -> int:
        """Slots per page."""
        ...

    @abstractmethod
    def keys(self, layer: int) -> Tensor:
        """``[num_slots, num_kv_heads, head_dim]``, the storage itself."""
        ...

    @abstractmethod
    def values(self, layer: int) -> Tensor:
        """``[num_slots, num_kv_heads, head_dim]``, the storage itself."""
        ...

    @abstractmethod
    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` ``[T, num_kv_heads, head_dim]`` at ``slots [T]`` int64; device only, capture-safe."""
        ...

    @abstractmethod
    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots ``sources [M]`` to ``destinations [M]`` in every layer, all reads before any write.

        Device only, capture-safe. Destinations are distinct, but for the trash page's.
        """
        ...


class PageAllocator(Protocol):
    """Which pages belong to which row. Host-side bookkeeping with a page table on the device."""

    @property
    @abstractmethod
    def page_table(self) -> Tensor:
        """``[rows, P]`` int64 on the device, `NULL_PAGE` past a row's pages; changed in place."""
        ...

    @property
    @abstractmethod
    def page_size(self) -> int:
        """Slots per page; that of the caches that share the table."""
        ...

    @abstractmethod
    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether an otherwise empty memory could hold a request of ``num_tokens`` slots."""
        ...

    @abstractmethod
    def reserve(self, row: int, num_tokens: int) -> bool:
        """Give ``row`` pages for ``num_tokens`` slots; false, with nothing changed, when too few are free."""
        ...

    @abstractmethod
    def release(self, row: int) -> None:
        """Take all pages back from ``row``."""
        ...

    @abstractmethod
    def move_row(self, source: int, destination: int) -> None:
        """Hand the pages of ``source`` to ``destination``, which must hold none."""
        ...


class KVMemory(Protocol):
    """All KV memory of one engine: one page table, and a cache of the same pages for each model that runs in it."""

    @property
    @abstractmethod
    def pages(self) -> PageAllocator:
        """Who owns which page; its table has a row for every request that may run at once."""
        ...

    @abstractmethod
    def cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> KVCache:
        """A cache for one model's layers, with the pages and the page size of `pages`; called once a model."""
        ...
