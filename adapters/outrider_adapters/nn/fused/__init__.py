"""Triton kernels for what stands between a layer's matrix products: norms, rope, gates. Chosen at construction, on CUDA alone.

Each replaces two to five kernels of torch by one, and reads and writes every value once. In a decode round, where a layer's
tensors are a few rows, the time between products is all latency, and so goes with the number of kernels.
"""

from __future__ import annotations

from outrider_adapters.nn.fused.choice import available, fused_gate, fused_heads, fused_norm

__all__ = ["available", "fused_gate", "fused_heads", "fused_norm"]
