"""`PlanCache`: attention plans that are kept from round to round and refreshed, not built anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider._torch import copy_all
from outrider.errors import CaptureError
from outrider.interfaces import AttnBackend, AttnPlan, KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities, PhaseShape

__all__ = ["PlanCache"]

_LENGTH_STEP = 64
"""A plan serves lengths up to the next multiple of this."""

_CAPACITY = 64


class _Key(NamedTuple):
    requests: int
    queries: int
    tail: int | None
    depths: bool
    length: int
    page_table: int
    pages: int


@frozen(eq=False)
class _Kept:
    """A plan and the batch it reads, whose tensors belong to it (but for the page table). An `AttnPlan` itself."""

    batch: AttnBatch
    plan: AttnPlan

    def refresh(self) -> None:
        """As the plan does."""
        self.plan.refresh()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As the plan does."""
        return self.plan.attend(layer, q, k, v)

    def filled(self, batch: AttnBatch) -> AttnPlan:
        """This plan for ``batch``, of the same sizes. Device only, safe in a capture."""
        own = self.batch
        copy_all([own.prefix_lens, own.slots], [batch.prefix_lens, batch.slots])
        _fill(own.tail_mask, batch.tail_mask)
        _fill(own.query_depths, batch.query_depths)
        _fill(own.tail_depths, batch.tail_depths)
        self.plan.refresh()
        return self


class PlanCache:
    """Plans of one model on one backend. Batches of equal sizes share a plan, whose buffers are filled anew each time.

    Building a plan costs as much as several layers of a small model; refreshing one, a few operators. Prompts, whose
    lengths differ from batch to batch, get plans of their own. Of more than 64 plans the least recently used goes, once nobody
    holds it: whoever captures a graph with a plan keeps it.
    """

    def __init__(self, attention: AttnBackend, layers: Sequence[AttentionSpec], kv: KVCache) -> None:
        self._attention = attention
        self._layers = tuple(layers)
        self._kv = kv
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._held: WeakValueDictionary[_Key, _Kept] = WeakValueDictionary()
        self._any_length = attention.capabilities.any_length
        self._page_size = kv.page_size
        self._reads_depths = any(spec.window is not None for spec in self._layers)

    @property
    def capabilities(self) -> AttnCapabilities:
        """Those of the backend."""
        return self._attention.capabilities

    @property
    def page_size(self) -> int:
        """Slots per page of the KV memory."""
        return self._page_size

    @property
    def device(self) -> torch.device:
        """Where the KV memory lives."""
        return self._kv.keys(0).device

    def static_plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan that is the caller's alone and reads the very tensors of ``batch``, for a capture; nothing is kept."""
        return self._attention.plan(batch, self._layers, self._kv)

    def plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan for ``batch``, refreshed; valid until the next call with a batch of the same sizes. No synchronisation."""
        key = self._key(batch)
        if key is None:
            return self._attention.plan(batch, self._layers, self._kv)
        kept = self._find(key)
        if kept is None:
            kept = self._build(batch, key.length)
            self._keep(key, kept)
            return kept
        return kept.filled(batch)

    def captured_plan(self, batch: AttnBatch) -> AttnPlan:
        """The kept plan for ``batch``, filled and refreshed inside a capture; the caller keeps it as long as its graph.

        Raises:
            CaptureError: no plan for a batch of these sizes was made before, or it was dropped since.
        """
        key = self._key(batch)
        kept = None if key is None else self._held.get(key)
        if kept is None:
            raise CaptureError(
                f"no attention plan was built before the capture for {PhaseShape.of(batch)}; run the round directly first, and "
                "hold its plans until it is captured"
            )
        return kept.filled(batch)

    def _key(self, batch: AttnBatch) -> _Key | None:
        """What batches have in common that share a plan; ``None`` for those that share none."""
        queries = batch.uniform_queries
        if queries is None or batch.host_prefix_lens is not None:
            return None
        pages = batch.page_table
        length = -(-batch.max_length // _LENGTH_STEP) * _LENGTH_STEP
        if self._any_length:
            length = max(length, pages.shape[1] * self._page_size)
        tail = None if batch.tail_mask is None else batch.tail_mask.shape[2]
        has_depths = batch.tail_depths is not None
        return _Key(len(batch.query_lens), queries, tail, has_depths, length, pages.data_ptr(), pages.shape[1])

    def _find(self, key: _Key) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        kept = self._held.get(key)
        if kept is not None:
            self._keep(key, kept)
        return kept

    def _keep(self, key: _Key, kept: _Kept) -> None:
        self._kept[key] = self._held[key] = kept
        if len(self._kept) > _CAPACITY:
            self._kept.popitem(last=False)

    def _build(self, batch: AttnBatch, length: int) -> _Kept:
        own = evolve(
            batch,
            prefix_lens=batch.prefix_lens.clone(),
            slots=batch.slots.clone(),
            max_length=length,
            tail_mask=_own(batch.tail_mask),
            # Depths say what has left a window; without one there is nothing to keep them for.
            query_depths=_own(batch.query_depths) if self._reads_depths else None,
            tail_depths=_own(batch.tail_depths) if self._reads_depths else None,
        )
        return _Kept(own, self._attention.plan(own, self._layers, self._kv))


def _own(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.contiguous().clone()


def _fill(own: Tensor | None, value: Tensor | None) -> None:
    if own is not None and value is not None:
        own.copy_(value)
