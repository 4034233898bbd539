"""`RaggedPlan`: prompts of any lengths, one request at a time and without padding.

Shape suffixes: N new tokens of one request, S its key positions, H kv heads, G query heads per kv head, D head dim.
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
from outrider_backends.sdpa.grid import GridCache

__all__ = ["RaggedPlan"]

_BLOCK_SCORES = 1 << 22
"""Most entries of a mask (or of scores, where they are written out) that exist at a time."""


@frozen(eq=False)
class _Request:
    """Where one request stands in the batch; ``slots [prefix + N]`` of all its keys when it has a prefix."""

    row: int
    first: int
    count: int
    prefix: int
    slots: Tensor | None


class RaggedPlan:
    """Prompts without a prefix use the new q, k and v as they are; later chunks gather their prefix.

    Long masks are never built: queries go in blocks, and under a window a block reads only the keys that it sees.
    Not for capture: prefix lengths come from the host.
    """

    def __init__(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache, grids: GridCache) -> None:
        prefixes = batch.host_prefix_lens
        if prefixes is None:
            prefixes = (0,) * len(batch.query_lens)  # no request has a query
        longest = max((p + n for p, n in zip(prefixes, batch.query_lens, strict=True)), default=0)
        allowed = batch.page_table.shape[1] * kv.page_size
        if longest > allowed:
            raise ConfigurationError(
                f"attention batch: a request of {longest} positions, the page table holds {allowed}; reserve more pages"
            )
        self._batch = batch
        self._kv = kv
        self._specs = tuple(layers)
        self._grid = grids.get(max(longest, 1), kv.page_size, batch.prefix_lens.device)
        self._real = torch.empty(batch.slots.shape[0], 1, 1, dtype=torch.bool, device=batch.slots.device)
        self._requests: list[_Request] = []
        first = 0
        for row, (count, prefix) in enumerate(zip(batch.query_lens, prefixes, strict=True)):
            slots = self._grid.positions.new_empty(prefix + count) if prefix > 0 else None
            if count > 0:
                self._requests.append(_Request(row=row, first=first, count=count, prefix=prefix, slots=slots))
            first += count
        self.refresh()

    def refresh(self) -> None:
        """Recompute gather indices from the present pages and slots; device only, in place."""
        batch, page_size = self._batch, self._kv.page_size
        limit = NUM_RESERVED_PAGES * page_size
        torch.ge(batch.slots[:, None, None], limit, out=self._real)
        for request in self._requests:
            if request.slots is None:
                continue
            prefix, stop = request.prefix, request.first + request.count
            pages = batch.page_table[request.row].index_select(0, self._grid.pages[:prefix])
            torch.add(self._grid.offsets[:prefix], pages, alpha=page_size, out=request.slots[:prefix])
            # Padding reads the page of zeros: NaN there, times a weight of 0, would still be NaN.
            real = self._real[request.first : stop, 0, 0]
            torch.mul(batch.slots[request.first : stop], real, out=request.slots[prefix:])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v to the cache, then attend; a new tensor ``[T, num_heads, head_dim]``."""
        spec = self._specs[layer]
        self._kv.write(layer, self._batch.slots, k, v)
        out = q.new_empty(q.shape)
        zero = k.new_zeros(())
        real_k, real_v = torch.where(self._real, k, zero), torch.where(self._real, v, zero)
        for request in self._requests:
            rows = slice(request.first, request.first + request.count)
            if request.slots is None:
                self._attend_request(out[rows], q[rows], real_k[rows], real_v[rows], 0, spec)
                continue
            # Keys that have left the window of the first query have left every window.
            start = 0 if spec.window is None else max(0, request.prefix - spec.window + 1)
            slots = request.slots[start:]
            keys = self._kv.keys(layer).index_select(0, slots)
            values = self._kv.values(layer).index_select(0, slots)
            self._attend_request(out[rows], q[rows], keys, values, request.prefix - start, spec)
        return out

    def _attend_request(
        self, out: Tensor, q_NHD: Tensor, k_SHD: Tensor, v_SHD: Tensor, offset: int, spec: AttentionSpec
    ) -> None:
        """Fill ``out [N, num_heads, D]``; query n stands at key ``offset + n``."""
        count, length = q_NHD.shape[0], k_SHD.shape[0]
        window = spec.window if spec.window is not None and spec.window < length else None
        plain = spec.soft_cap is None and spec.sinks is None
        if plain and window is None and offset == 0:
            out.copy_(_grouped_sdpa(q_NHD, k_SHD, v_SHD, None, spec))
            return
        most = max(_BLOCK_SCORES // (length if plain else length * spec.num_heads), 16)
        block = most if window is None else min(most, max(window, 64))
        for start in range(0, count, block):
            stop = min(start + block, count)
            low = 0 if window is None else max(0, offset + start - window + 1)
            keys, values = k_SHD[low : offset + stop], v_SHD[low : offset + stop]
            position_N1 = self._grid.positions[offset + start : offset + stop, None]
            position_S = self._grid.positions[low : offset + stop]
            hidden_NS = position_S > position_N1
            if window is not None:
                hidden_NS |= position_S <= position_N1 - window
            mask_NS = q_NHD.new_zeros(hidden_NS.shape).masked_fill_(hidden_NS, masked_score(q_NHD.dtype))
            attend = _grouped_sdpa if plain else _grouped_exactly
            out[start:stop] = attend(q_NHD[start:stop], keys, values, mask_NS, spec)


def _grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """``[N, num_heads, D]``; causal where ``mask`` is ``None``. Kv heads are the batch, and are not copied."""
    heads, head_dim = spec.num_kv_heads, spec.head_dim
    groups = spec.num_heads // heads
    q_HGND = q.view(-1, heads, groups, head_dim).permute(1, 2, 0, 3)
    k_HGSD = k.unsqueeze(2).expand(-1, -1, groups, -1).permute(1, 2, 0, 3)
    v_HGSD = v.unsqueeze(2).expand(-1, -1, groups, -1).permute(1, 2, 0, 3)
    out_HGND = nn.scaled_dot_product_attention(
        q_HGND, k_HGSD, v_HGSD, attn_mask=mask, is_causal=mask is None, scale=spec.scale
    )
    return out_HGND.permute(2, 0, 1, 3).reshape(q.shape)


def _grouped_exactly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, spec: AttentionSpec) -> Tensor:
    """``[N, num_heads, D]`` with soft cap or sinks."""
    heads, head_dim = spec.num_kv_heads, spec.head_dim
    groups, count = spec.num_heads // heads, q.shape[0]
    folded = q.view(count, heads, groups, head_dim).permute(1, 2, 0, 3).reshape(1, heads, groups * count, head_dim)
    out = attend_exactly(
        folded, k.transpose(0, 1)[None], v.transpose(0, 1)[None], mask.repeat(groups, 1), spec, fold_sinks(spec, count)
    )
    return out.view(heads, groups, count, head_dim).permute(2, 0, 1, 3).reshape(q.shape)
