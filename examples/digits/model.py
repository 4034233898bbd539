"""The target: transformers' LLaVA at a small size, and the parts of it that training runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as functional
from attrs import frozen
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from examples.digits.settings import CONTEXT, HIDDEN, IMAGE_TOKENS, PATCH, SIDE, TAPS, VOCAB_SIZE

__all__ = ["BEGIN_ID", "END_ID", "IMAGE_ID", "PAD_ID", "VISION_HIDDEN", "Reader", "Reading"]

END_ID, BEGIN_ID, PAD_ID, IMAGE_ID = range(4)
VISION_HIDDEN = 96


@frozen(eq=False)
class Reading:
    """What the decoder makes of ``[B, T]`` embedded tokens: ``logits [B, T, V]``, and the taps side by side."""

    logits: Tensor
    features: Tensor


def _config() -> LlavaConfig:
    vision = CLIPVisionConfig(
        hidden_size=VISION_HIDDEN,
        intermediate_size=288,
        num_hidden_layers=5,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=VISION_HIDDEN,
        hidden_act="gelu",
    )
    text = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        tie_word_embeddings=True,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_ID,
        image_seq_length=IMAGE_TOKENS,
        # The last layer: all of the tower is trained. Its first row, CLIP's class token, is left out.
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )


class Reader(nn.Module):
    """`LlavaForConditionalGeneration` taken apart: tower, projector, decoder. Its head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.llava = LlavaForConditionalGeneration(_config())
        generation = self.llava.generation_config
        generation.bos_token_id, generation.eos_token_id, generation.pad_token_id = BEGIN_ID, END_ID, PAD_ID
        # transformers leaves its modules partly without annotations: they are taken once, as modules.
        model = cast("nn.Module", self.llava.model)
        self._tower, self._projector = model.get_submodule("vision_tower"), model.get_submodule("multi_modal_projector")
        self._decoder = model.get_submodule("language_model")
        self._embedding = cast("nn.Embedding", self._decoder.get_submodule("embed_tokens"))

    @property
    def embedding(self) -> Tensor:
        """The embedding ``[V, H]``, which is the head, too."""
        return self._embedding.weight

    def patches(self, pixels_BCYX: Tensor) -> Tensor:
        """What the tower makes of normalized pixels: ``[B, IMAGE_TOKENS, VISION_HIDDEN]``."""
        seen = cast("_Seen", self._tower(pixel_values=pixels_BCYX))
        return seen.last_hidden_state[:, 1:]

    def merged(self, ids_BT: Tensor, patches_NPD: Tensor | None) -> Tensor:
        """Embeddings ``[B, T, H]``: those of the tokens, and of projected images in the places of `IMAGE_ID`."""
        embeds_BTH = self._embedding(ids_BT)
        if patches_NPD is None:
            return cast("Tensor", embeds_BTH)
        rows = self._projector(patches_NPD).to(embeds_BTH.dtype)
        return cast("Tensor", embeds_BTH.masked_scatter((ids_BT == IMAGE_ID)[..., None], rows))

    def forward(self, embeds_BTH: Tensor) -> Tensor:
        """Logits ``[B, T, V]`` of embedded tokens, each of which sees those before it."""
        out = cast("_Seen", self._decoder(inputs_embeds=embeds_BTH, use_cache=False))
        return functional.linear(out.last_hidden_state, self._embedding.weight)

    def read(self, embeds_BTH: Tensor) -> Reading:
        """`forward`, with what the draft is fed."""
        out = cast("_Seen", self._decoder(inputs_embeds=embeds_BTH, use_cache=False, output_hidden_states=True))
        logits_BTV = functional.linear(out.last_hidden_state, self._embedding.weight)
        return Reading(logits_BTV, torch.cat([out.hidden_states[tap] for tap in TAPS], dim=-1))

    def save(self, directory: Path) -> None:
        """Write config and weights as transformers does."""
        write = cast("Callable[[Path], None]", self.llava.save_pretrained)  # pyright: ignore[reportUnknownMemberType] - **kwargs
        write(directory)


class _Seen:
    """The part of transformers' outputs that is used."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]
