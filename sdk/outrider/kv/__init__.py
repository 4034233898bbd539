"""Paged KV memory: the tensors, and which row owns which page."""

from __future__ import annotations

from outrider.kv.known_slots import KnownSlots
from outrider.kv.memory import PagedMemory
from outrider.kv.paged import PagedKVCache
from outrider.kv.pages import PagePool, slots_of, slots_of_rows

__all__ = ["KnownSlots", "PagePool", "PagedKVCache", "PagedMemory", "slots_of", "slots_of_rows"]
