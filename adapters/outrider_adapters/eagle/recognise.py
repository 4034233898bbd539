"""Tells EAGLE checkpoints from each other and from what is often taken for one."""

from __future__ import annotations

from collections.abc import Set

from outrider.checkpoint import Checkpoint, Config
from outrider_adapters.eagle.names import canonical_name

__all__ = ["eagle1_refusal", "eagle3_refusal"]

_ATTENTION = ("self_attn.q_proj.weight", "self_attn.qkv_proj.weight")


def eagle3_refusal(checkpoint: Checkpoint) -> str | None:
    """``None`` for an EAGLE-3 checkpoint, however faulty; else why it is none, in a clause."""
    names = _names(checkpoint)
    other = _other_kind(checkpoint, names)
    if other is not None:
        return other
    if _is_eagle3(checkpoint.config, names):
        return None
    if "fc.weight" in names:
        return "it has no hidden_norm in its layer, no d2t and no draft_vocab_size: an EAGLE-1 head, not an EAGLE-3 one"
    return "it has neither fc.weight nor a layer with hidden_norm, and its config.json does not name EAGLE-3"


def eagle1_refusal(checkpoint: Checkpoint) -> str | None:
    """``None`` for an EAGLE-1, EAGLE-2 or HASS checkpoint, however faulty; else why it is none, in a clause."""
    names = _names(checkpoint)
    other = _other_kind(checkpoint, names)
    if other is not None:
        return other
    if _is_eagle3(checkpoint.config, names):
        return "its tensors or its config.json name EAGLE-3 (hidden_norm, d2t, draft_vocab_size): not an EAGLE-1 head"
    if "fc.weight" in names or _declares(checkpoint.config, "eagle"):
        return None
    return "it has no fc.weight, and its config.json does not name EAGLE"


def _names(checkpoint: Checkpoint) -> Set[str]:
    return {canonical_name(name) for name in checkpoint.tensors}


def _declares(config: Config, word: str) -> bool:
    told = (*config.get_strs("architectures"), config.get_str("model_type", ""), _speculator(config))
    return any(word in text.lower() for text in told)


def _speculator(config: Config) -> str:
    return config.get_str("speculators_model_type", "")


def _is_eagle3(config: Config, names: Set[str]) -> bool:
    joined = any(name.startswith("layers.") and name.endswith(".hidden_norm.weight") for name in names)
    return joined or "d2t" in names or config.has("draft_vocab_size") or _declares(config, "eagle3")


def _other_kind(checkpoint: Checkpoint, names: Set[str]) -> str | None:
    config = checkpoint.config
    if _declares(config, "dflash") or ("hidden_norm.weight" in names and "fc.weight" in names):
        return "it is a DFlash draft (block diffusion over the target's features), not an EAGLE head"
    if "mask_hidden" in names:
        return (
            "it is a P-EAGLE draft (mask_hidden): it drafts all tokens in one pass, an EAGLE head one after the other"
        )
    if any(name.startswith("mtp.") for name in names):
        return "it holds MTP layers (mtp.*), which belong to their own target; not an EAGLE head"
    joined = any(name.endswith(".hidden_norm.weight") for name in names)
    ordinary = all(part in names for part in ("embed_tokens.weight", "norm.weight", "layers.0.input_layernorm.weight"))
    if "fc.weight" not in names and not joined and ordinary:
        layers = sum(f"layers.{i}.{name}" in names for i in range(len(names)) for name in _ATTENTION)
        return (
            f"it is an ordinary causal language model ({layers} layers with embedding and final norm, no fc.weight), not "
            "an EAGLE head; give it as the target, or as a standalone draft"
        )
    return None
