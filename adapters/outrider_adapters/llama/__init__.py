"""Targets of the Llama family: Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from outrider_adapters.llama.config import FAMILIES, Family, LlamaConfig
from outrider_adapters.llama.loader import LlamaLoader, loader
from outrider_adapters.llama.model import LlamaStack, LlamaWeights

__all__ = ["FAMILIES", "Family", "LlamaConfig", "LlamaLoader", "LlamaStack", "LlamaWeights", "loader"]
