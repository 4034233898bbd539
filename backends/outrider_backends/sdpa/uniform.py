"""`UniformPlan`: equally many queries per request, in one call per layer.

Shape suffixes: B requests, Q queries each, M tail slots, S key positions, H kv heads, G query heads per kv head,
D head dim, R = G · Q folded query rows (R = G where Q = 1).

Measured on one CPU thread (float32, H 2, G 2, D 64; B 1 and 8, Q 1, 6 and 16, S 64 to 512): with keys gathered head by
head, SDPA on folded queries is the fastest or within noise of it everywhere (bmm + softmax + bmm: 1.00 to 1.10 times as
long; keys gathered slot by slot: 1.0 to 1.25 times), so it serves every shape that has neither soft cap nor sinks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as nn

from outrider.errors import ConfigurationError
from outrider.interfaces.kv import NUM_RESERVED_PAGES, KVCache
from outrider.types import AttentionSpec, AttnBatch
from outrider_backends.sdpa.exact import attend_exactly, fold_sinks, masked_score
from outrider_backends.sdpa.grid import GridCache, KeyGrid

__all__ = ["UniformPlan"]

_KEY_BLOCK = 64
"""Key positions are rounded up to this, so that growing sequences keep their shapes for many rounds."""


@frozen(eq=False)
class _Geometry:
    """What layers of one spec share: rows to gather ``[B·H·S]``, mask ``[B, 1, R or 1, S]``, sinks and shapes."""

    spec: AttentionSpec
    plain: bool
    scale: float
    key_index: Tensor
    value_index: Tensor
    mask: Tensor
    sinks: Tensor | None
    gathered: tuple[int, int, int, int]
    split: tuple[int, int, int, int, int]
    folded: tuple[int, int, int, int]


class UniformPlan:
    """One mask and one gather per pass, held in buffers of the plan; every layer then gathers, and attends once.

    Keys that no real query of the request sees are read from the page of zeros, never from where they would stand:
    stale NaN in a page, times a weight of 0, would still be NaN. A query whose slot is in a reserved page is padding.
    """

    def __init__(
        self, batch: AttnBatch, queries: int, layers: Sequence[AttentionSpec], kv: KVCache, grids: GridCache
    ) -> None:
        num_requests, pages = batch.page_table.shape
        device = batch.prefix_lens.device
        dtype = kv.keys(0).dtype
        tail = queries if batch.tail_mask is None else batch.tail_mask.shape[2]
        rounded = -(-max(batch.max_length, tail, 1) // _KEY_BLOCK) * _KEY_BLOCK
        length = min(rounded, pages * kv.page_size)
        self._batch = batch
        self._kv = kv
        self._slots = batch.slots
        self._queries = queries
        self._page_size = kv.page_size
        self._grid: KeyGrid = grids.get(length, kv.page_size, device)
        self._after: Tensor = self._grid.positions + 1
        self._hidden = masked_score(dtype)

        # Column 0 stands for the whole prefix, 1..M for the tail slots, M + 1 for what lies beyond.
        self._column_BS = torch.empty(num_requests, length, dtype=torch.int64, device=device)
        self._last_column = tail + 1
        self._visible_BQM = torch.zeros(num_requests, queries, tail + 2, dtype=dtype, device=device)
        self._visible_BQM[:, :, -1] = self._hidden
        self._seen_BM = torch.ones(num_requests, tail + 2, dtype=torch.int64, device=device)
        self._seen_BM[:, -1] = 0
        if batch.tail_mask is None:
            later = torch.ones(queries, queries, dtype=torch.bool, device=device).triu_(1)
            self._visible_BQM[:, :, 1:-1].masked_fill_(later, self._hidden)

        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self._sources: dict[int, Tensor] = {}
        self._indices: dict[tuple[int, int], Tensor] = {}
        self._heads: dict[int, Tensor] = {}
        self._geometries: dict[tuple[AttentionSpec, int, int], _Geometry] = {}
        self._layers = [self._prepare(kv, number, spec, length) for number, spec in enumerate(layers)]
        self.refresh()

    def refresh(self) -> None:
        """Recompute gather indices and masks from the present lengths, pages, slots and tail masks.

        Device only, in place, capture-safe.
        """
        batch = self._batch
        self._refresh_tail(batch)
        column_BS = torch.sub(self._after, batch.prefix_lens[:, None], out=self._column_BS)
        column_BS.clamp_(0, self._last_column)
        pages_BS = batch.page_table.index_select(1, self._grid.pages)
        slots_BS = torch.add(self._grid.offsets, pages_BS, alpha=self._page_size)
        slots_BS *= self._seen_BM.gather(1, column_BS)
        for (_, ratio), index_BHS in self._indices.items():
            torch.add(self._heads[index_BHS.shape[1]], slots_BS[:, None], alpha=ratio, out=index_BHS)
        for groups, source_BGQM in self._sources.items():
            num_requests, _, queries, _ = source_BGQM.shape
            column_BGQS = column_BS[:, None, None].expand(-1, groups, queries, -1)
            for (window, wanted), mask in self._masks.items():
                if wanted != groups:
                    continue
                mask_BGQS = mask.view(num_requests, groups, queries, -1)
                torch.gather(source_BGQM, 3, column_BGQS, out=mask_BGQS)
                if window is not None:
                    mask_BGQS.masked_fill_(self._outside(window)[:, None], self._hidden)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v to the cache, then attend; a new tensor ``[B · Q, num_heads, head_dim]``."""
        view, key_rows, value_rows = self._layers[layer]
        self._kv.write(layer, self._slots, k, v)
        keys = key_rows.index_select(0, view.key_index).view(view.gathered)
        values = value_rows.index_select(0, view.value_index).view(view.gathered)
        single = self._queries == 1
        folded = q.view(view.folded) if single else q.view(view.split).permute(0, 2, 3, 1, 4).reshape(view.folded)
        if view.plain:
            out = nn.scaled_dot_product_attention(folded, keys, values, attn_mask=view.mask, scale=view.scale)
        else:
            out = attend_exactly(folded, keys, values, view.mask, view.spec, view.sinks)
        if single:
            return out.reshape(q.shape)
        num_requests, queries, heads, groups, head_dim = view.split
        return out.reshape(num_requests, heads, groups, queries, head_dim).permute(0, 3, 1, 2, 4).reshape(q.shape)

    def _refresh_tail(self, batch: AttnBatch) -> None:
        """Which tail slots each query sees, and which any real query sees at all."""
        if self._queries == 1 and batch.tail_mask is None:
            return  # its own slot and nothing else: constant
        limit = NUM_RESERVED_PAGES * self._page_size
        real_BQ = batch.slots.view(-1, self._queries) >= limit
        if batch.tail_mask is None:
            self._seen_BM[:, 1:-1].copy_(real_BQ)
            return
        self._visible_BQM[:, :, 1:-1].fill_(self._hidden).masked_fill_(batch.tail_mask, 0)
        self._seen_BM[:, 1:-1].copy_((batch.tail_mask & real_BQ[:, :, None]).any(dim=1))

    def _outside(self, window: int) -> Tensor:
        """``[B, Q, S]`` bool: keys that have left the window of a query, positions counted from the prefix's end."""
        batch = self._batch
        depth_BS = self._grid.positions - batch.prefix_lens[:, None]
        if batch.tail_depths is not None:
            slot_BS = depth_BS.clamp(0, batch.tail_depths.shape[1] - 1)
            depth_BS = torch.where(depth_BS < 0, depth_BS, batch.tail_depths.gather(1, slot_BS))
        depth_BQ = self._grid.positions[None, : self._queries] if batch.query_depths is None else batch.query_depths
        return depth_BS[:, None, :] <= (depth_BQ - window)[:, :, None]

    def _prepare(self, kv: KVCache, number: int, spec: AttentionSpec, length: int) -> tuple[_Geometry, Tensor, Tensor]:
        """What attention of one layer needs, with its keys and values as rows ``[·, D]``."""
        key_rows, key_ratio = _as_rows(kv.keys(number))
        value_rows, value_ratio = _as_rows(kv.values(number))
        geometry = self._geometries.get((spec, key_ratio, value_ratio))
        # Equal specs may still have sinks of their own, which equality leaves out.
        if geometry is None or geometry.spec.sinks is not spec.sinks:
            geometry = self._geometry(spec, key_ratio, value_ratio, length)
            self._geometries[spec, key_ratio, value_ratio] = geometry
        return geometry, key_rows, value_rows

    def _geometry(self, spec: AttentionSpec, key_ratio: int, value_ratio: int, length: int) -> _Geometry:
        num_requests = self._column_BS.shape[0]
        queries, heads, head_dim = self._queries, spec.num_kv_heads, spec.head_dim
        groups = spec.num_heads // heads
        # A window no shorter than all keys hides nothing.
        window = spec.window if spec.window is not None and spec.window < length else None
        return _Geometry(
            spec=spec,
            plain=spec.soft_cap is None and spec.sinks is None,
            scale=spec.scale,
            key_index=self._index(heads, key_ratio, length),
            value_index=self._index(heads, value_ratio, length),
            mask=self._mask(window, 1 if queries == 1 else groups, length),
            sinks=fold_sinks(spec, queries),
            gathered=(num_requests, heads, length, head_dim),
            split=(num_requests, queries, heads, groups, head_dim),
            folded=(num_requests, heads, groups * queries, head_dim),
        )

    def _index(self, heads: int, ratio: int, length: int) -> Tensor:
        """The flat view of the gather index for this many heads and rows per slot; filled by `refresh`."""
        index = self._indices.get((heads, ratio))
        if index is None:
            device = self._column_BS.device
            self._heads[heads] = torch.arange(heads, device=device)[:, None]
            index = torch.empty(self._column_BS.shape[0], heads, length, dtype=torch.int64, device=device)
            self._indices[heads, ratio] = index
        return index.view(-1)

    def _mask(self, window: int | None, groups: int, length: int) -> Tensor:
        """The mask of this window, repeated for each of ``groups``; filled by `refresh`."""
        mask = self._masks.get((window, groups))
        if mask is None:
            visible_BQM = self._visible_BQM
            num_requests, queries, _ = visible_BQM.shape
            self._sources[groups] = visible_BQM[:, None].expand(-1, groups, -1, -1)
            mask = visible_BQM.new_empty(num_requests, 1, groups * queries, length)
            self._masks[window, groups] = mask
        return mask


def _as_rows(storage: Tensor) -> tuple[Tensor, int]:
    """``[num_slots, H, D]`` as rows ``[·, D]`` of the same memory, and how many rows apart two slots are."""
    num_slots, heads, head_dim = storage.shape
    if storage.is_contiguous():
        return storage.view(-1, head_dim), heads
    step = storage.stride(1) if heads > 1 else storage.stride(0)
    ratio, rest = divmod(storage.stride(0), step)
    if rest or storage.stride(2) != 1:
        raise ConfigurationError(
            f"KV storage has strides {storage.stride()} for shape {tuple(storage.shape)}; the sdpa backend needs "
            "contiguous head vectors and a slot stride that is a multiple of the head stride"
        )
    return storage.as_strided(((num_slots - 1) * ratio + heads, head_dim), (step, 1)), ratio
