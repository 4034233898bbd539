"""CUDA graphs: whole rounds of speculative decoding, captured once and replayed."""

from __future__ import annotations

from outrider_backends.cuda_graph.runner import CudaGraphRunner, create

__all__ = ["CudaGraphRunner", "create"]
