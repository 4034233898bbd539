"""What tells the architectures of the Llama family apart, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

__all__ = ["FAMILIES", "Family", "find_family"]

Flag = Literal["never", "always", "config"]
"""Whether a bias is there: by the architecture alone, or as ``attention_bias`` / ``mlp_bias`` says."""

WindowRule = Literal["none", "every layer", "by layer"]
"""``none``: ``sliding_window`` has no effect. ``every layer``: it holds for all, whenever it is not null.
``by layer``: only with ``use_sliding_window``, for the layers that ``layer_types`` or ``max_window_layers`` name."""


@frozen
class Family:
    """One architecture: where it departs from plain Llama, and the defaults its config class fills in."""

    architecture: str
    model_type: str
    qkv_bias: Flag = "never"
    o_bias: Flag = "never"
    mlp_bias: Flag = "never"
    qk_norm: bool = False
    window: WindowRule = "none"
    head_dim: int | None = None
    """Head size where the config has none; ``None``: hidden size / heads."""
    num_kv_heads: int | None = None
    """Key-value heads where the config does not mention them; ``None``: as many as query heads."""
    max_positions: int = 32768


_ALL = (
    Family("LlamaForCausalLM", "llama", qkv_bias="config", o_bias="config", mlp_bias="config", max_positions=2048),
    Family("MistralForCausalLM", "mistral", window="every layer", num_kv_heads=8, max_positions=131072),
    Family("Qwen2ForCausalLM", "qwen2", qkv_bias="always", window="by layer", num_kv_heads=32),
    Family(
        "Qwen3ForCausalLM",
        "qwen3",
        qkv_bias="config",
        o_bias="config",
        qk_norm=True,
        window="by layer",
        head_dim=128,
        num_kv_heads=32,
    ),
)

FAMILIES: Mapping[str, Family] = {family.architecture: family for family in _ALL}
"""The supported architectures by name."""


def find_family(architectures: tuple[str, ...], model_type: str | None) -> Family | None:
    """The family of the first known architecture; of the model type where no architecture is named."""
    if architectures:
        return next((FAMILIES[name] for name in architectures if name in FAMILIES), None)
    return next((family for family in _ALL if family.model_type == model_type), None)
