"""LLaVA: a CLIP or SigLIP tower and a projector before a decoder of the Llama family."""

from __future__ import annotations

from outrider_adapters.llava.encoder import LlavaEncoder, LlavaTower
from outrider_adapters.llava.loader import LlavaLoader, loader
from outrider_adapters.llava.plan import LlavaPlan

__all__ = ["LlavaEncoder", "LlavaLoader", "LlavaPlan", "LlavaTower", "loader"]
