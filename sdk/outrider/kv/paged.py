"""`PagedKVCache`: keys and values of every layer in fixed pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.errors import ConfigurationError, Problems
from outrider.interfaces.kv import NUM_RESERVED_PAGES
from outrider.types import AttentionSpec

__all__ = ["PagedKVCache"]


class PagedKVCache:
    """Keys and values of one model in ``num_pages`` pages of ``page_size`` slots, reserved pages included.

    Layers of equal shape share one tensor ``[layers, 2, num_slots, num_kv_heads, head_dim]``, so `move` is
    one operation over all of them. Fresh memory is zero. Nothing here synchronises; every method that changes
    the memory is device only and safe in a capture.

    Raises:
        ConfigurationError: no layers, too few pages, or a page size below 1.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        with Problems("KV cache", ConfigurationError) as problems:
            if not layers:
                problems.add("no layers were given; a cache needs at least one `AttentionSpec`")
            if num_pages <= NUM_RESERVED_PAGES:
                problems.add(
                    f"{num_pages} pages asked, {NUM_RESERVED_PAGES} are reserved; "
                    f"give at least {NUM_RESERVED_PAGES + 1}"
                )
            if page_size < 1:
                problems.add(f"page_size {page_size} asked; it must be 1 or more")
        self._page_size = page_size
        num_slots = num_pages * page_size
        members: dict[tuple[int, int], list[int]] = {}
        for index, spec in enumerate(layers):
            members.setdefault((spec.num_kv_heads, spec.head_dim), []).append(index)
        self._planes: list[Tensor] = []
        """Per shape ``[2 · layers, num_slots, num_kv_heads · head_dim]``: every plane of keys or values."""
        views: dict[int, tuple[Tensor, Tensor]] = {}
        for (num_heads, head_dim), indices in members.items():
            group = torch.zeros(len(indices), 2, num_slots, num_heads, head_dim, dtype=dtype, device=device)
            self._planes.append(group.view(2 * len(indices), num_slots, num_heads * head_dim))
            views.update({index: (group[place, 0], group[place, 1]) for place, index in enumerate(indices)})
        self._keys = [views[index][0] for index in range(len(layers))]
        self._values = [views[index][1] for index in range(len(layers))]

    @staticmethod
    def bytes_needed(layers: Sequence[AttentionSpec], num_pages: int, page_size: int, dtype: torch.dtype) -> int:
        """Bytes that a cache of these sizes occupies; nothing is allocated."""
        per_slot = sum(2 * spec.num_kv_heads * spec.head_dim for spec in layers)
        return per_slot * num_pages * page_size * dtype.itemsize

    @property
    def page_size(self) -> int:
        """Slots per page."""
        return self._page_size

    @property
    def num_slots(self) -> int:
        """Slots of all pages, reserved ones included."""
        return self._keys[0].shape[0]

    def keys(self, layer: int) -> Tensor:
        """``[num_slots, num_kv_heads, head_dim]``, the storage itself."""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """``[num_slots, num_kv_heads, head_dim]``, the storage itself."""
        return self._values[layer]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` ``[T, num_kv_heads, head_dim]`` (any strides) at ``slots [T]`` int64.

        Slots are distinct, but for the trash page's. Device only, capture-safe.
        """
        self._keys[layer].index_copy_(0, slots, k)
        self._values[layer].index_copy_(0, slots, v)

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots ``sources [M]`` to ``destinations [M]`` int64 in every layer, all reads before any write.

        Destinations are distinct, but for the trash page's. Device only, capture-safe.
        """
        for planes in self._planes:
            planes.index_copy_(1, destinations, planes.index_select(1, sources))
