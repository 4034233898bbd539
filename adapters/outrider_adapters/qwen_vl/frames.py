"""`FramePatches`: how Qwen2.5-VL's video processor scales the frames of a video and cuts them up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol, cast

import torch
from attrs import frozen
from PIL.Image import Image, new
from torch import Tensor

from outrider._torch import int_rows
from outrider.checkpoint import Checkpoint, Config
from outrider.errors import CheckpointError, InputError, Problems
from outrider_adapters.media import Grid, HubConfig, HubImageProcessor, process
from outrider_adapters.qwen_vl.patches import scaled_grid

__all__ = ["FramePatches", "read_frame_patches"]

_KNOWN = ("Qwen2VLVideoProcessor", "Qwen2_5_VLVideoProcessor")
_SIZE = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
"""Fewest and most pixels of a frame where the config is silent, as in transformers' video processor."""
_MAX_VIDEO_TOKENS = 128_000
_BUDGET = 0.9
"""The part of ``max_video_tokens`` that the frames of one video share."""
_FLOOR = 1.05
"""Times the fewest pixels: what a frame keeps of a budget that many share."""
_SHARED = (
    "do_convert_rgb",
    "do_normalize",
    "do_rescale",
    "do_resize",
    "image_mean",
    "image_std",
    "max_pixels",
    "merge_size",
    "min_pixels",
    "patch_size",
    "resample",
    "rescale_factor",
    "size",
    "temporal_patch_size",
)
"""Settings that the video processor and the Pillow form of the image processor have alike."""
_PROBE_SIZE = (3, 2)
"""Pixels of the frames that tell whether the processor does what its config says."""


@frozen(eq=False)
class FramePatches:
    """``size``: pixels of a patch's side; ``merge``: patches of each axis that make one token; ``temporal``: frames of a patch.

    ``min_pixels``, ``max_pixels``: between which a frame is scaled. ``budget``: pixels that all frames of a video share, times
    ``temporal``; ``None``: frames are scaled alike, however many there are. ``channels``: of a pixel.
    """

    processor: HubImageProcessor
    channels: int
    size: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    budget: int | None

    def grid(self, width: int, height: int, num_frames: int, frames_per_second: float) -> Grid:
        """Tokens of a video: one for each cell of every ``temporal`` frames, for which the last one may be repeated.

        Raises:
            InputError: the processor refuses the shape of the frames.
        """
        cells = scaled_grid(width, height, self.size * self.merge, self.min_pixels, self._most_pixels(num_frames))
        steps = -(-num_frames // self.temporal)
        return Grid(cells.height, cells.width, steps, self.temporal / frames_per_second if steps > 1 else 0.0)

    def cut(self, frames: Iterable[Image], grid: Grid, num_frames: int) -> Tensor:
        """Patches ``[N, values]`` float32 of a video on the CPU: channels, then frames of the patch, its rows and columns.

        Source: ``patchify`` of transformers' ``Qwen2VLVideoProcessor``; here the Pillow form of the image processor scales and
        cuts every frame, and says each patch of it once for each frame that a patch of a video has.

        Raises:
            InputError: the processor refuses the frames.
            CheckpointError: it cuts them otherwise than ``grid`` says, because its config contradicts the tower's.
        """
        left = iter(frames)
        return torch.cat(
            [self._cut_together(list(islice(left, self.temporal)), grid, num_frames) for _ in range(grid.frames)]
        )

    def _cut_together(self, frames: Sequence[Image], grid: Grid, num_frames: int) -> Tensor:
        """Patches of at most ``temporal`` frames, the last one standing for those that are missing."""
        limits = {"shortest_edge": self.min_pixels, "longest_edge": self._most_pixels(num_frames)}
        processed = process(self.processor, frames, size=limits)
        pixels, cells = processed["pixel_values"], int_rows(processed["image_grid_thw"])
        expected = [[1, grid.height * self.merge, grid.width * self.merge]] * len(frames)
        values = self.channels * self.temporal * self.size * self.size
        if cells != expected or pixels.shape[1] != values:
            raise CheckpointError(
                f"the video processor cuts frames into {cells} patches (frames, rows, columns) of {pixels.shape[1]} values, "
                f"expected {expected} of {values}; its config must say 'do_resize' true and have the tower's patch_size, "
                "merge_size and temporal_patch_size"
            )
        parts = pixels.view(len(frames), -1, self.channels, self.temporal, self.size * self.size)
        slots = [parts[min(slot, len(frames) - 1), :, :, 0] for slot in range(self.temporal)]
        return torch.stack(slots, dim=2).flatten(1)

    def _most_pixels(self, num_frames: int) -> int:
        if self.budget is None:
            return self.max_pixels
        return max(min(self.max_pixels, self.budget // num_frames), int(self.min_pixels * _FLOOR))


class _Maker(Protocol):
    """The processor's class; transformers leaves its signature partly untyped."""

    @abstractmethod
    def __call__(self, **settings: object) -> HubImageProcessor: ...


def read_frame_patches(checkpoint: Checkpoint, hub: HubConfig) -> FramePatches:
    """What the video processor's config of ``checkpoint`` says, or where it has none that of images.

    transformers' own video processor needs torchvision; scaling and normalising is done here by the Pillow form for images.

    Raises:
        CheckpointError: the config cannot be used, or contradicts the tower's.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    vision, config = hub.vision, _config_of(checkpoint)
    named = config.get_optional_str("video_processor_type")
    if named is not None and named not in _KNOWN:
        raise CheckpointError(f"{config.where}: the video processor is {named}, allowed are {', '.join(_KNOWN)}")
    settings: dict[str, object] = {"size": _SIZE, **{key: config.values[key] for key in _SHARED if config.has(key)}}
    try:
        processor = cast("_Maker", Qwen2VLImageProcessorPil)(**settings)
    except Exception as error:  # whatever the processor's class raises
        raise CheckpointError(f"{config.where}: no video processor can be made of it ({error})") from error
    shortest, longest = processor.size.shortest_edge, processor.size.longest_edge
    with Problems(f"{config.where}: the video processor does not fit the tower", CheckpointError) as problems:
        if shortest is None or longest is None:
            problems.add(
                f"its 'size' is {processor.size}, expected shortest_edge and longest_edge (the fewest and most pixels)"
            )
    patch, merge, temporal = (
        vision.get_int(key) for key in ("patch_size", "spatial_merge_size", "temporal_patch_size")
    )
    side, tokens = patch * merge, config.get_int("max_video_tokens", _MAX_VIDEO_TOKENS)
    budget = int(tokens * side * side * _BUDGET) * temporal if config.get_bool("cap_pixels_per_frame", False) else None
    channels = vision.get_int("in_channels", 3)
    patches = FramePatches(processor, channels, patch, merge, temporal, shortest or 1, longest or 1, budget)
    try:
        patches.cut([new("RGB", _PROBE_SIZE)], patches.grid(*_PROBE_SIZE, 1, 1.0), 1)
    except (CheckpointError, InputError, TypeError) as error:  # words where the processor's config needs numbers
        raise CheckpointError(f"{config.where}: {error}; mend it") from error
    return patches


def _config_of(checkpoint: Checkpoint) -> Config:
    """Where transformers looks for it: the processor's section, a file of its own, else what images have."""
    whole = checkpoint.optional_json("processor_config.json")
    section = None if whole is None else whole.section("video_processor")
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        section = section if section is not None else checkpoint.optional_json(name)
    if section is None and whole is not None:
        section = whole.section("image_processor")
    if section is None:
        raise CheckpointError(
            f"{checkpoint.directory}: no video processor was found, expected video_preprocessor_config.json"
        )
    return section
