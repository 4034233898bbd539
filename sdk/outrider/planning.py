"""`PlanCache`: attention plans that are kept from round to round and refreshed, not built anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.interfaces import AttnBackend, AttnPlan, KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities

__all__ = ["PlanCache"]

_LENGTH_STEP = 64
"""A plan serves lengths up to the next multiple of this."""

_CAPACITY = 64

_Key = tuple[int, int, int, bool, int, int, int]


@frozen(eq=False)
class _Kept:
    """A plan and the batch it reads, whose tensors belong to the cache (but for the page table)."""

    batch: AttnBatch
    plan: AttnPlan


class PlanCache:
    """Plans of one model on one backend. Batches of equal sizes share a plan, whose buffers are filled anew each time.

    Building a plan costs as much as several layers of a small model; refreshing one, a few operators. Prompts, whose
    lengths differ from batch to batch, get plans of their own. The least recently used plans are dropped, but for those that
    a CUDA graph was captured with.
    """

    def __init__(self, attention: AttnBackend, layers: Sequence[AttentionSpec], kv: KVCache) -> None:
        self._attention = attention
        self._layers = tuple(layers)
        self._kv = kv
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._pinned: dict[_Key, _Kept] = {}
        self._on_cuda = self.device.type == "cuda"

    @property
    def capabilities(self) -> AttnCapabilities:
        """Those of the backend."""
        return self._attention.capabilities

    @property
    def page_size(self) -> int:
        """Slots per page of the KV memory."""
        return self._kv.page_size

    @property
    def device(self) -> torch.device:
        """Where the KV memory lives."""
        return self._kv.keys(0).device

    def static_plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan that is the caller's alone and reads the very tensors of ``batch``, for a capture; nothing is kept."""
        return self._attention.plan(batch, self._layers, self._kv)

    def plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan for ``batch``, refreshed; valid until the next call with a batch of the same sizes. No synchronisation."""
        queries = batch.uniform_queries
        if queries is None or batch.host_prefix_lens is not None:
            return self._attention.plan(batch, self._layers, self._kv)
        length = -(-batch.max_length // _LENGTH_STEP) * _LENGTH_STEP
        tail = 0 if batch.tail_mask is None else batch.tail_mask.shape[2]
        pages = batch.page_table
        key = (
            len(batch.query_lens),
            queries,
            tail,
            batch.tail_depths is None,
            length,
            pages.data_ptr(),
            pages.shape[1],
        )
        kept = self._kept.get(key)
        if self._on_cuda and torch.cuda.is_current_stream_capturing():
            # The graph will read and write this plan's buffers for as long as it lives.
            kept = kept or self._pinned.get(key)
            if kept is None:
                raise CaptureError(
                    f"no attention plan of sizes {key} was built before the capture; run it directly first"
                )
            self._pinned[key] = kept
        kept = kept or self._pinned.get(key)
        if kept is None:
            kept = self._build(batch, length)
            self._kept[key] = kept
            if len(self._kept) > _CAPACITY:
                self._kept.popitem(last=False)
            return kept.plan
        if key in self._kept:
            self._kept.move_to_end(key)
        own = kept.batch
        own.prefix_lens.copy_(batch.prefix_lens)
        own.slots.copy_(batch.slots)
        _fill(own.tail_mask, batch.tail_mask)
        _fill(own.query_depths, batch.query_depths)
        _fill(own.tail_depths, batch.tail_depths)
        kept.plan.refresh()
        return kept.plan

    def _build(self, batch: AttnBatch, length: int) -> _Kept:
        own = evolve(
            batch,
            prefix_lens=batch.prefix_lens.clone(),
            slots=batch.slots.clone(),
            max_length=length,
            tail_mask=_own(batch.tail_mask),
            query_depths=_own(batch.query_depths),
            tail_depths=_own(batch.tail_depths),
        )
        return _Kept(own, self._attention.plan(own, self._layers, self._kv))


def _own(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.contiguous().clone()


def _fill(own: Tensor | None, value: Tensor | None) -> None:
    if own is not None and value is not None:
        own.copy_(value)
