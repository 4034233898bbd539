"""What runners of captured graphs are made of: buckets, static buffers, graphs of rounds, phases and segments, the ladder."""

from __future__ import annotations

from outrider.graphs.attention import StaticAttention
from outrider.graphs.buckets import (
    Buckets,
    default_counts,
    length_bucket,
    length_buckets,
    request_buckets,
    token_buckets,
)
from outrider.graphs.buffers import BufferSet, rows_of, shape_of
from outrider.graphs.ladder import GraphOptions, LadderRunner, Steps
from outrider.graphs.options import RunnerOptions
from outrider.graphs.results import wanted_rows

__all__ = [
    "Buckets",
    "BufferSet",
    "GraphOptions",
    "LadderRunner",
    "RunnerOptions",
    "StaticAttention",
    "Steps",
    "default_counts",
    "length_bucket",
    "length_buckets",
    "request_buckets",
    "rows_of",
    "shape_of",
    "token_buckets",
    "wanted_rows",
]
