"""What every runner of captured graphs needs: buckets of sizes, static buffers, and a static `AttnBatch`."""

from __future__ import annotations

from outrider.graphs.attention import StaticAttention
from outrider.graphs.buckets import Buckets, default_counts, request_buckets, token_buckets
from outrider.graphs.buffers import BufferSet, rows_of, shape_of

__all__ = [
    "Buckets",
    "BufferSet",
    "StaticAttention",
    "default_counts",
    "request_buckets",
    "rows_of",
    "shape_of",
    "token_buckets",
]
