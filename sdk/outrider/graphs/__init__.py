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
from outrider.graphs.direct import DirectCalls
from outrider.graphs.ladder import LadderRunner
from outrider.graphs.media import encode_media, groups_of, media_calls
from outrider.graphs.media_graphs import declared_eager
from outrider.graphs.options import GraphOptions, RunnerOptions, Steps
from outrider.graphs.results import wanted_rows

__all__ = [
    "Buckets",
    "BufferSet",
    "DirectCalls",
    "GraphOptions",
    "LadderRunner",
    "RunnerOptions",
    "StaticAttention",
    "Steps",
    "declared_eager",
    "default_counts",
    "encode_media",
    "groups_of",
    "length_bucket",
    "length_buckets",
    "media_calls",
    "request_buckets",
    "rows_of",
    "shape_of",
    "token_buckets",
    "wanted_rows",
]
