"""A layer, a cache and batches of padding alone: for what a backend refuses, and for batches with nothing in them."""

from __future__ import annotations

import torch

from outrider.kv import PagedKVCache
from outrider.types import AttentionSpec, AttnBatch

__all__ = ["CPU", "PLAIN", "batch_of", "cache"]

CPU = torch.device("cpu")
PLAIN = AttentionSpec(4, 2, 16, 0.25)


def batch_of(query_lens: tuple[int, ...], known: bool = False) -> AttnBatch:
    """Requests without a past; ``known``: the host knows that they have none."""
    rows, tokens = len(query_lens), sum(query_lens)
    return AttnBatch(
        query_lens=query_lens,
        prefix_lens=torch.zeros(rows, dtype=torch.int64),
        page_table=torch.zeros(rows, 2, dtype=torch.int64),
        slots=torch.full((tokens,), 16),
        max_length=max(query_lens, default=0),
        host_prefix_lens=(0,) * rows if known else None,
    )


def cache() -> PagedKVCache:
    """Two pages beside the reserved ones."""
    return PagedKVCache([PLAIN], 4, 16, torch.float32, CPU)
