"""Attention with `torch.nn.functional.scaled_dot_product_attention` over a paged cache."""

from __future__ import annotations

from outrider_backends.sdpa.backend import SdpaBackend, create

__all__ = ["SdpaBackend", "create"]
