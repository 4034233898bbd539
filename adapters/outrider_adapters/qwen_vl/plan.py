"""`QwenVlPlan`: config, processors and tensor names of a Qwen2.5-VL checkpoint, read and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from attrs import frozen
from PIL.Image import new
from torch import nn

from outrider.checkpoint import Checkpoint, Config
from outrider.errors import CheckpointError, InputError, Problems
from outrider.types.counts import counted
from outrider_adapters.llama import FAMILIES, Decoder, DecoderNames
from outrider_adapters.media import (
    HubConfig,
    HubImageProcessor,
    Placeholders,
    load_tower,
    read_hub_config,
    read_image_processor,
)
from outrider_adapters.nn import WeightLoader
from outrider_adapters.qwen_vl.encoder import QwenVlEncoder, QwenVlTower
from outrider_adapters.qwen_vl.frames import FramePatches, read_frame_patches
from outrider_adapters.qwen_vl.patches import Patches

__all__ = ["QwenVlPlan"]

_NAMES = DecoderNames(body=("model.language_model.", "model.", "language_model.model."), head=("", "language_model."))
_TOWER = ("visual.", "model.visual.")
_FAMILY = FAMILIES["Qwen2ForCausalLM"]
_KIND = "qwen2_5_vl_vision"
_TOKENS_PER_SECOND = 4
"""Positions in time, as in transformers' config where a checkpoint is silent."""
_PROBE_SIZE = (3, 2)
"""Pixels of the image that tells whether the processor does what its config says."""


@frozen(eq=False)
class QwenVlPlan:
    """A checked Qwen2.5-VL checkpoint; no weight is read yet."""

    decoder: Decoder
    placeholders: Placeholders
    hub: HubConfig
    processor: HubImageProcessor
    patches: Patches
    frames: FramePatches | None

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> QwenVlPlan:
        """The plan for ``checkpoint``.

        Raises:
            CheckpointError: config, processor or names do not describe a usable model.
        """
        hub = read_hub_config(checkpoint)
        processor = read_image_processor(checkpoint)
        decoder = Decoder.read(checkpoint, hub.decoder, _NAMES, _FAMILY)
        vision, values = hub.vision, hub.values
        patches = _read_patches(checkpoint, hub, processor)
        with Problems(f"{checkpoint.directory} does not describe a usable model", CheckpointError) as problems:
            if decoder.config.rope.sections is None:
                problems.add(
                    f"{hub.decoder.where}: the rope has no 'mrope_section', expected frequencies for time, height and width"
                )
            if (width := vision.get_int("out_hidden_size")) != decoder.config.hidden_size:
                problems.add(
                    f"{vision.where}: 'out_hidden_size' is {width}, the decoder's hidden size is "
                    f"{decoder.config.hidden_size}"
                )
            image = values.get_int("image_token_id")
            video = _read_video_token(checkpoint, values, decoder.config.vocab_size)
            if image == video:
                problems.add(
                    f"{values.where}: 'image_token_id' and 'video_token_id' are both {image}; correct one of them"
                )
        frames = None if video is None else read_frame_patches(checkpoint, hub)
        return cls(decoder, Placeholders(image, video), hub, processor, patches, frames)

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What the encoder of media is."""
        vision, patches = self.hub.vision, self.patches
        side = patches.size * patches.merge
        area = side * side
        videos = () if self.frames is None else (("tokens per video", self._video_tokens(self.frames, area)),)
        return (
            ("tower", f"{_KIND}, {vision.get_int('depth')} layers"),
            ("image size", f"any, a token for {side} × {side} pixels"),
            ("tokens per image", f"{max(patches.min_pixels // area, 1)} to {patches.max_pixels // area}"),
            *videos,
        )

    def _video_tokens(self, frames: FramePatches, area: int) -> str:
        least, most = max(frames.min_pixels // area, 1), frames.max_pixels // area
        pace = f"{self._tokens_per_second:g} positions a second"
        return f"{least} to {most} for every {counted(frames.temporal, 'frame')}, {pace}"

    @property
    def _tokens_per_second(self) -> float:
        return self.hub.vision.get_float("tokens_per_second", _TOKENS_PER_SECOND)

    def encoder(self, weights: WeightLoader, device: torch.device, dtype: torch.dtype) -> QwenVlEncoder:
        """The image encoder with weights from ``weights``, which notes what is missing or does not fit."""
        module = load_tower(self.hub, self._make_tower, weights.scope(*_TOWER), device)
        tower = QwenVlTower(module)
        return QwenVlEncoder(self.processor, tower, self.patches, self.frames, self._tokens_per_second, device, dtype)

    def _make_tower(self) -> nn.Module:
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

        make = cast("Callable[[object], nn.Module]", Qwen2_5_VisionTransformerPretrainedModel)
        return make(self.hub.tower)


def _read_video_token(checkpoint: Checkpoint, values: Config, vocab_size: int) -> int | None:
    """The id of videos; ``None`` where only transformers' default names one, and the vocabulary ends before it."""
    video = values.get_int("video_token_id")
    return video if checkpoint.config.has("video_token_id") or video < vocab_size else None


def _read_patches(checkpoint: Checkpoint, hub: HubConfig, processor: HubImageProcessor) -> Patches:
    vision = hub.vision
    patch, merge = vision.get_int("patch_size"), vision.get_int("spatial_merge_size")
    shortest, longest = processor.size.shortest_edge, processor.size.longest_edge
    window, side = vision.get_int("window_size"), patch * merge
    with Problems(f"{checkpoint.directory}: the image processor does not fit the tower", CheckpointError) as problems:
        if shortest is None or longest is None:
            problems.add(
                f"its 'size' is {processor.size}, expected shortest_edge and longest_edge (the fewest and most pixels)"
            )
        if window < side:
            problems.add(f"{vision.where}: 'window_size' is {window}, a window of one token takes {side} pixels")
    patches = Patches(patch, merge, shortest or 1, longest or 1)
    try:
        pixels, _ = patches.cut(processor, [new("RGB", _PROBE_SIZE)], [patches.grid(*_PROBE_SIZE)])
    except (CheckpointError, InputError, TypeError) as error:  # words where the processor's config needs numbers
        raise CheckpointError(f"{checkpoint.directory}: {error}; mend preprocessor_config.json") from error
    expected = vision.get_int("in_channels", 3) * vision.get_int("temporal_patch_size") * patch * patch
    if (found := pixels.shape[1]) != expected:
        raise CheckpointError(
            f"{checkpoint.directory}: the image processor makes patches of {found} values, the tower takes {expected}; its "
            "config must have the tower's temporal_patch_size"
        )
    return patches
