"""`TritonPlan`: one batch over a paged cache, attended to by one kernel per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import KVCache
from outrider.types import AttentionSpec, AttnBatch
from outrider_backends.triton.launches import Launch, launches_for
from outrider_backends.triton.launching import launch

__all__ = ["Nothing", "TritonPlan"]


@frozen(eq=False)
class Nothing:
    """What a kernel without splits is given for scratch and tickets: ``floats`` and ``ints``, never touched."""

    floats: Tensor
    ints: Tensor


@frozen(eq=False)
class _Layer:
    """What one layer is launched with: its sinks ``[num_heads]`` float32, and the launches that it shares with its like."""

    spec: AttentionSpec
    sinks: Tensor | None
    launches: tuple[Launch, ...]


class TritonPlan:
    """Kernels read the batch's own tensors when they run, so there is nothing to recompute, and any plan can be captured.

    The grid follows from what the host knows (queries per request, bounds of lengths); programs past a request's true
    length end at once. Scratch for splits is allocated in each call, from the memory of the stream or of the capture.
    A plan serves one stream at a time.
    """

    def __init__(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache, nothing: Nothing) -> None:
        device, dtype = batch.prefix_lens.device, kv.keys(0).dtype
        self._kv = kv
        self._nothing = nothing
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._prefix_lens = self._dense(batch.prefix_lens)
        self._table = batch.page_table if batch.page_table.stride(1) == 1 else self._dense(batch.page_table)
        self._slots = self._dense(batch.slots)
        self._mask = None if batch.tail_mask is None else self._dense(batch.tail_mask).view(torch.uint8)
        self._query_depths = None if batch.query_depths is None else self._dense(batch.query_depths)
        self._tail_depths = None if batch.tail_depths is None else self._dense(batch.tail_depths)
        self._numbers = (
            self._table.stride(0),
            batch.uniform_queries or 0,
            0 if batch.tail_mask is None else batch.tail_mask.shape[2],
            self._table.shape[1],
        )
        # Equal specs may still have sinks of their own, which equality leaves out.
        shared: dict[tuple[int, int, int, int | None], tuple[Launch, ...]] = {}
        self._layers: list[_Layer] = []
        for spec in layers:
            key = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window)
            found = shared.get(key)
            if found is None:
                found = shared[key] = launches_for(spec, batch, kv.page_size, dtype, device)
            sinks = None if spec.sinks is None else spec.sinks.to(torch.float32).contiguous()
            self._layers.append(_Layer(spec, sinks, found))
        tickets = [each.grid[0] * each.grid[1] for found in shared.values() for each in found if each.scratch]
        # Zero between launches: whoever takes the last ticket puts them back.
        self._tickets = torch.zeros(max(tickets), dtype=torch.int32, device=device) if tickets else nothing.ints

    def refresh(self) -> None:
        """Nothing, unless tensors of the batch are strided; then their copies follow. Device only, capture-safe."""
        for own, source in self._copies:
            own.copy_(source)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v to the cache and attend; a new tensor ``[T, num_heads, head_dim]``.

        Rows whose slot is in a reserved page are padding: their k and v are not read or written, their output is finite.
        Device only, capture-safe.
        """
        found = self._layers[layer]
        q, k, v = _rows(q), _rows(k), _rows(v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        keys, values = self._kv.keys(layer), self._kv.values(layer)
        for each in found.launches:
            split = each.scratch > 0
            scratch = torch.empty(each.scratch, dtype=torch.float32, device=q.device) if split else self._nothing.floats
            tickets = self._tickets if split else self._nothing.ints
            launch(
                each,
                out,
                (q, k, v, keys, values),
                (
                    self._prefix_lens,
                    self._table,
                    self._slots,
                    self._mask,
                    self._query_depths,
                    self._tail_depths,
                    each.items,
                    found.sinks,
                    scratch,
                    tickets,
                ),
                self._numbers,
                found.spec,
            )
        return out

    def _dense(self, tensor: Tensor) -> Tensor:
        """``tensor`` itself where it is contiguous, else a copy that `refresh` keeps up to date."""
        if tensor.is_contiguous():
            return tensor
        own = tensor.contiguous()
        self._copies.append((own, tensor))
        return own


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(2) == 1 or tensor.shape[2] == 1 else tensor.contiguous()
