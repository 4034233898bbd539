"""`LlavaPlan`: config, image processor and tensor names of a LLaVA checkpoint, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from attrs import frozen
from PIL.Image import new
from torch import nn

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError, Problems
from outrider_adapters.llama import FAMILIES, Decoder, DecoderNames, find_family
from outrider_adapters.llava.encoder import FeatureChoice, LlavaEncoder, LlavaTower, Projector
from outrider_adapters.media import (
    HubConfig,
    HubImageProcessor,
    Placeholders,
    load_tower,
    process,
    read_hub_config,
    read_image_processor,
)
from outrider_adapters.nn import ACTIVATIONS, WeightLoader

__all__ = ["LlavaPlan"]

_NAMES = DecoderNames(
    body=("language_model.model.", "model.language_model.", "language_model."), head=("language_model.", "", "model.")
)
_TOWER = ("vision_tower.vision_model.", "vision_tower.", "model.vision_tower.vision_model.", "model.vision_tower.")
_PROJECTOR = ("multi_modal_projector.", "model.multi_modal_projector.")
_CLASS_TOKENS: Mapping[str, int] = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Towers, and rows they put before those of the patches."""
_PROBE_SIZE = (3, 2)
"""Pixels of the image that tells what the processor makes of one that is no square."""


@frozen(eq=False)
class LlavaPlan:
    """A checked LLaVA checkpoint; no weight is read yet."""

    decoder: Decoder
    placeholders: Placeholders
    hub: HubConfig
    processor: HubImageProcessor
    choice: FeatureChoice
    num_tokens: int

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> LlavaPlan:
        """The plan for ``checkpoint``.

        Raises:
            CheckpointError: config, processor or names do not describe a usable model.
        """
        hub = read_hub_config(checkpoint)
        text_type = hub.decoder.get_optional_str("model_type")
        family = find_family((), text_type)
        processor = read_image_processor(checkpoint)
        with Problems(f"{checkpoint.directory} does not describe a usable model", CheckpointError) as problems:
            if family is None:
                known = ", ".join(one.model_type for one in FAMILIES.values())
                problems.add(f"{hub.decoder.where}: 'model_type' is '{text_type}', allowed are {known}")
            kind = hub.vision.get_str("model_type")
            if kind not in _CLASS_TOKENS:
                problems.add(f"{hub.vision.where}: 'model_type' is '{kind}', allowed are {', '.join(_CLASS_TOKENS)}")
            activation = hub.values.get_str("projector_hidden_act", "gelu")
            if activation not in ACTIVATIONS:
                problems.add(
                    f"{hub.values.where}: 'projector_hidden_act' is '{activation}', allowed are {', '.join(ACTIVATIONS)}"
                )
        choice = _read_choice(hub)
        image_size, patch_size = hub.vision.get_int("image_size"), hub.vision.get_int("patch_size")
        _check_processor(checkpoint, processor, image_size)
        rows = (image_size // patch_size) ** 2 + _CLASS_TOKENS[kind] - choice.skipped
        placeholder = hub.values.get_optional_int("image_token_index")
        if placeholder is None:
            placeholder = hub.values.get_int("image_token_id")
        decoder = Decoder.read(checkpoint, hub.decoder, _NAMES, family)
        return cls(decoder, Placeholders(placeholder), hub, processor, choice, rows)

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What the image encoder is."""
        vision = self.hub.vision
        return (
            ("tower", f"{vision.get_str('model_type')}, {vision.get_int('num_hidden_layers')} layers"),
            ("image size", f"{vision.get_int('image_size')} pixels, patches of {vision.get_int('patch_size')}"),
            ("tokens per image", str(self.num_tokens)),
        )

    def encoder(self, weights: WeightLoader, device: torch.device, dtype: torch.dtype) -> LlavaEncoder:
        """The image encoder with weights from ``weights``, which notes what is missing or does not fit."""
        # Old checkpoints store the indices of patches, which count from 0.
        weights.ignore_ending("embeddings.position_ids")
        module = load_tower(self.hub, self._make_tower, weights.scope(*_TOWER), device, "vision_model.")
        hidden, vision = self.decoder.config.hidden_size, self.hub.vision.get_int("hidden_size")
        scope = weights.scope(*_PROJECTOR)
        bias = self.hub.values.get_bool("multimodal_projector_bias", True)
        projector = Projector(
            scope.tensor("linear_1.weight", (hidden, vision * len(self.choice.layers))),
            scope.tensor("linear_1.bias", (hidden,)) if bias else None,
            ACTIVATIONS[self.hub.values.get_str("projector_hidden_act", "gelu")],
            scope.tensor("linear_2.weight", (hidden, hidden)),
            scope.tensor("linear_2.bias", (hidden,)) if bias else None,
        )
        side = self.hub.vision.get_int("image_size")
        tower = LlavaTower(module, self.choice, projector, side, self.num_tokens, device, dtype)
        return LlavaEncoder(self.processor, tower)

    def _make_tower(self) -> nn.Module:
        from transformers import AutoModel

        # transformers leaves the parameters and the result of this method untyped.
        return cast("nn.Module", AutoModel.from_config(self.hub.tower))  # type: ignore[no-untyped-call]  # see above


def _read_choice(hub: HubConfig) -> FeatureChoice:
    values, num_layers = hub.values, hub.vision.get_int("num_hidden_layers")
    layers = values.get_ints("vision_feature_layer") or (-2,)
    strategy = values.get_str("vision_feature_select_strategy", "default")
    with Problems(f"{values.where} does not say which rows of the tower are used", CheckpointError) as problems:
        if outside := [layer for layer in layers if not -num_layers - 1 <= layer <= num_layers]:
            problems.add(
                f"'vision_feature_layer' names {outside}, the tower has the states -{num_layers + 1} to {num_layers}"
            )
        if strategy not in ("default", "full"):
            problems.add(f"'vision_feature_select_strategy' is '{strategy}', allowed are default and full")
    return FeatureChoice(layers, 1 if strategy == "default" else 0)


def _check_processor(checkpoint: Checkpoint, processor: HubImageProcessor, image_size: int) -> None:
    """Refuse a processor whose images the tower cannot take, before a user's image fails."""
    try:
        found = list(process(processor, [new("RGB", _PROBE_SIZE)])["pixel_values"].shape)
    except InputError as error:
        raise CheckpointError(f"{checkpoint.directory}: {error}; mend its config") from error
    expected = [1, 3, image_size, image_size]
    if found != expected:
        raise CheckpointError(
            f"{checkpoint.directory}: the image processor makes pixels {found} of an image of "
            f"{' × '.join(map(str, _PROBE_SIZE))}, the tower takes {expected}; 'size' and 'crop_size' in its config must "
            "give the tower's image_size"
        )
