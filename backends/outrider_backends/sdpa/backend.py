"""`SdpaBackend`: chooses how a batch is attended to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import AttnPlan, KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities, CaptureSupport
from outrider_backends.sdpa.grid import GridCache
from outrider_backends.sdpa.ragged import RaggedPlan
from outrider_backends.sdpa.uniform import UniformPlan

__all__ = ["SdpaBackend", "create"]

_CAPABILITIES = AttnCapabilities(
    name="sdpa",
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
    page_sizes=None,
    head_dims=None,
    tree_masks=True,
    windows=True,
    soft_cap=True,
    sinks=True,
    capture=CaptureSupport.UNIFORM_QUERIES,
)

_SMALL_QUERIES = 16
"""Up to here a batch whose prefix lengths the host knows goes through one padded call instead of one per request."""


class SdpaBackend:
    """PyTorch's own attention: every device, dtype, page size and head dim it has, on any machine.

    A batch of equally many queries per request (decode, verification, draft steps, padded extend) is one call with
    gathered keys and a mask; anything else, and long prompts, one call per request without padding. The former can be
    captured, provided `AttnBatch.host_prefix_lens` is not given or the queries are few.
    """

    def __init__(self) -> None:
        self._grids = GridCache()

    @property
    def capabilities(self) -> AttnCapabilities:
        """What the backend serves."""
        return _CAPABILITIES

    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        """A plan for ``batch``, already refreshed; does not synchronise.

        Raises:
            ConfigurationError: the batch is neither uniform nor known to the host, or its parts disagree.
        """
        uniform = batch.uniform_queries
        _check(batch, uniform)
        if uniform is not None and uniform > 0:
            known = batch.tail_mask is None and batch.host_prefix_lens is not None
            if not known or uniform <= _SMALL_QUERIES:
                return UniformPlan(batch, uniform, layers, kv, self._grids)
        return RaggedPlan(batch, layers, kv, self._grids)


def _check(batch: AttnBatch, uniform: int | None) -> None:
    requests = len(batch.query_lens)
    with Problems("attention batch", ConfigurationError) as problems:
        if uniform is None and batch.tail_mask is not None:
            problems.add(f"a tail mask needs equally many queries per request, found {batch.query_lens}")
        if uniform is None and batch.host_prefix_lens is None:
            problems.add(
                f"queries per request differ ({batch.query_lens}), so prefix lengths must be known to the host; "
                "give `host_prefix_lens`, or pad to equally many queries"
            )
        if batch.prefix_lens.shape[0] != requests or batch.page_table.shape[0] != requests:
            problems.add(
                f"{requests} requests by query_lens, {batch.prefix_lens.shape[0]} by prefix_lens, "
                f"{batch.page_table.shape[0]} by page_table"
            )
        if batch.host_prefix_lens is not None and len(batch.host_prefix_lens) != requests:
            problems.add(f"{requests} requests by query_lens, {len(batch.host_prefix_lens)} by host_prefix_lens")
        if batch.slots.shape[0] != batch.num_tokens:
            problems.add(f"{batch.num_tokens} tokens by query_lens, {batch.slots.shape[0]} slots")


def create() -> SdpaBackend:
    """A new SDPA backend (entry point ``outrider.attention``)."""
    return SdpaBackend()
