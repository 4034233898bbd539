"""Targets of the Llama family: Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from outrider_adapters.llama.config import FAMILIES, Family, LlamaConfig
from outrider_adapters.llama.decoder import PLAIN_NAMES, Decoder, DecoderNames
from outrider_adapters.llama.families import find_family
from outrider_adapters.llama.loader import LlamaLoader, loader
from outrider_adapters.llama.model import LlamaStack, LlamaWeights

__all__ = [
    "FAMILIES",
    "PLAIN_NAMES",
    "Decoder",
    "DecoderNames",
    "Family",
    "LlamaConfig",
    "LlamaLoader",
    "LlamaStack",
    "LlamaWeights",
    "find_family",
    "loader",
]
