"""`TritonBackend`: attention in one kernel per layer, on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve

from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import AttnPlan, KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities, CaptureSupport
from outrider_backends.triton.kernel import INTERPRETED
from outrider_backends.triton.plan import Nothing, TritonPlan

__all__ = ["TritonBackend"]

_CAPABILITIES = AttnCapabilities(
    name="triton",
    devices=frozenset({"cuda"}),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
    page_sizes=None,
    head_dims=frozenset(range(16, 257, 8)),
    tree_masks=True,
    windows=True,
    soft_cap=True,
    sinks=True,
    capture=CaptureSupport.ANY,
    any_length=True,
)

_INTERPRETED = evolve(
    _CAPABILITIES, devices=frozenset({"cpu", "cuda"}), dtypes=frozenset({torch.float32, torch.float16})
)


class TritonBackend:
    """Writes the new keys and values, and attends, in one launch per layer; keys are read from their pages in place.

    - Any batch is served, ragged or uniform, whether or not the host knows its prefix lengths, and any can be captured: one
      graph serves every length up to its ``max_length``, which may be the whole context.
    - A request's output depends, to the bit, neither on the other requests, nor on their number, nor on ``max_length``, nor on
      padding: tiles and splits are functions of its own sizes.
    - Float32 is computed in float32 throughout (no TF32); half precision accumulates in float32.
    - A batch in which some requests have few queries and others many takes two launches.

    On a CPU it runs where Triton's interpreter does (``TRITON_INTERPRET=1``), for tests.
    """

    def __init__(self) -> None:
        self._nothing: dict[torch.device, Nothing] = {}

    @property
    def capabilities(self) -> AttnCapabilities:
        """What the backend serves; the CPU only under Triton's interpreter, whose products of bfloat16 are wrong."""
        return _INTERPRETED if INTERPRETED else _CAPABILITIES

    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        """A plan for ``batch``; does not synchronise. Nothing of it goes to the device but the blocks of a ragged batch.

        Raises:
            ConfigurationError: the parts of the batch disagree, or the memory is of a kind that kernels cannot read.
        """
        self._check(batch, layers, kv)
        device = batch.prefix_lens.device
        nothing = self._nothing.get(device)
        if nothing is None:
            nothing = Nothing(
                torch.empty(4, dtype=torch.float32, device=device), torch.zeros(4, dtype=torch.int32, device=device)
            )
            self._nothing[device] = nothing
        return TritonPlan(batch, layers, kv, nothing)

    def _check(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> None:
        requests, device = len(batch.query_lens), batch.prefix_lens.device
        with Problems("attention batch", ConfigurationError) as problems:
            if device.type == "cpu" and not INTERPRETED:
                problems.add(
                    "the batch is on the CPU, the triton backend runs on CUDA; choose 'sdpa', or set TRITON_INTERPRET=1 "
                    "before Python starts to run it (slowly) in Triton's interpreter"
                )
            if batch.uniform_queries is None and batch.tail_mask is not None:
                problems.add(f"a tail mask needs equally many queries per request, found {batch.query_lens}")
            if batch.prefix_lens.shape[0] != requests or batch.page_table.shape[0] != requests:
                problems.add(
                    f"{requests} requests by query_lens, {batch.prefix_lens.shape[0]} by prefix_lens, "
                    f"{batch.page_table.shape[0]} by page_table"
                )
            known = batch.host_prefix_lens
            if known is not None and len(known) != requests:
                problems.add(f"{requests} requests by query_lens, {len(known)} by host_prefix_lens")
            elif known is not None:
                longest = max((p + n for p, n in zip(known, batch.query_lens, strict=True)), default=0)
                allowed = batch.page_table.shape[1] * kv.page_size
                if longest > allowed:
                    problems.add(
                        f"a request of {longest} positions, the page table holds {allowed}; reserve more pages"
                    )
            if batch.slots.shape[0] != batch.num_tokens:
                problems.add(f"{batch.num_tokens} tokens by query_lens, {batch.slots.shape[0]} slots")
            strided = [
                layer
                for layer in range(len(layers))
                if kv.keys(layer).stride(2) != 1 or kv.values(layer).stride(2) != 1
            ]
            if strided:
                problems.add(
                    f"KV storage of layer {strided[0]} has strides {kv.keys(strided[0]).stride()} and "
                    f"{kv.values(strided[0]).stride()}; the triton backend needs contiguous head vectors"
                )
