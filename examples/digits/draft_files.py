"""Writes a trained head as an EAGLE-3 checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare
from torch import Tensor

from examples.digits.draft import EPS, HEAD_DIM, HEADS, INNER, KV_HEADS, THETA, EagleHead
from examples.digits.model import BEGIN_ID, END_ID, PAD_ID
from examples.digits.settings import CONTEXT, DRAFT_VOCAB_SIZE, HIDDEN, TAPS, VOCAB_SIZE

__all__ = ["save_draft"]


def save_draft(head: EagleHead, directory: Path) -> None:
    """Write config.json and model.safetensors into ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    target_ids = head.target_ids.cpu()
    marks = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    marks[target_ids] = True
    tensors: dict[str, Tensor] = {name: value.cpu().contiguous() for name, value in head.state_dict().items()}
    tensors |= {"d2t": target_ids - torch.arange(DRAFT_VOCAB_SIZE), "t2d": marks}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "media_view": "target_embedding",
        "tap_convention": "boundary",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [*TAPS], "use_aux_hidden_state": True},
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
