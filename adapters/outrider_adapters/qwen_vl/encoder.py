"""`QwenVlEncoder`: images and videos of any resolution to decoder rows, by `QwenVlTower`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import torch
from PIL.Image import Image
from torch import Tensor, nn

from outrider.errors import InputError
from outrider.graphs import encode_media
from outrider.interfaces import GraphRunner, MediaBody
from outrider.types import BodyCalls, BufferSlot
from outrider_adapters.media import Grid, HubImageProcessor, ImageEncoder, Placement, PromptPositions, VideoEncoder
from outrider_adapters.qwen_vl.frames import FramePatches
from outrider_adapters.qwen_vl.patches import Patches
from outrider_adapters.qwen_vl.positions import multi_axis_positions

__all__ = ["QwenVlEncoder", "QwenVlTower", "QwenVlVideos"]

_MOST_POSITIONS = 1 << 24
"""Of a video in time: whole numbers that float32 can hold."""


class _TowerOutput(Protocol):
    pooler_output: Tensor


class _Tower(Protocol):
    @abstractmethod
    def __call__(self, hidden_states: Tensor, *, grid_thw: Tensor) -> _TowerOutput: ...


class QwenVlTower(MediaBody):
    """``pixels [patches, values]`` of all media, and of each its ``cells`` (frames, rows, columns of patches), to ``rows
    [tokens, H]`` of all of them. Media of any sizes go through it together.
    """

    def __init__(self, module: nn.Module) -> None:
        """``module``: transformers' own."""
        self._module = cast("_Tower", module)

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        """None of a size that is known beforehand."""
        return ()

    @property
    def outputs(self) -> tuple[BufferSlot, ...]:
        """None of a size that is known beforehand."""
        return ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Any."""
        return ()

    @property
    def eager_because(self) -> str:
        """Windows and positions are laid out by transformers on the host."""
        return "the tower of Qwen2.5-VL reads the sizes of the images on the host"

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:  # noqa: ARG002
        """Rows of all media; reads ``cells`` on the host."""
        return {"rows": self._module(buffers["pixels"], grid_thw=buffers["cells"]).pooler_output}


class QwenVlVideos(VideoEncoder):
    """Frames of a video are scaled alike, and each two of them (``temporal_patch_size``) make a row of tokens in time.

    Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.
    """

    def __init__(
        self,
        patches: FramePatches,
        tower: QwenVlTower,
        tokens_per_second: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """``tower``: on ``device`` in ``dtype``. ``tokens_per_second``: positions in time."""
        self._patches = patches
        self._tower = tower
        self._tokens_per_second = tokens_per_second
        self._device = device
        self._dtype = dtype

    def grid(self, width: int, height: int, num_frames: int, frames_per_second: float) -> Grid:
        """Rows and columns of tokens after scaling, for each two frames; see `VideoEncoder.grid`."""
        found = self._patches.grid(width, height, num_frames, frames_per_second)
        lasts = found.seconds * (found.frames - 1)
        if lasts * self._tokens_per_second >= _MOST_POSITIONS:
            raise InputError(
                f"at {frames_per_second:g} frames per second it lasts {lasts:g} seconds and more, each of which is "
                f"{self._tokens_per_second:g} positions, at most {_MOST_POSITIONS} are allowed; correct its frames per second"
            )
        return found

    def encode(self, frames: Iterable[Image], num_frames: int, grid: Grid, runner: GraphRunner | None) -> Tensor:
        """Rows ``[tokens, H]``; see `VideoEncoder.encode`. Its patches are in memory together, its frames are not."""
        pixels = self._patches.cut(frames, grid, num_frames)
        cells = torch.tensor([[grid.frames, grid.height * self._patches.merge, grid.width * self._patches.merge]])
        inputs = {"pixels": pixels.to(self._device, self._dtype), "cells": cells.to(self._device)}
        return encode_media(self._tower, inputs, runner)["rows"]


class QwenVlEncoder(ImageEncoder):
    """An image keeps its shape: it is scaled to whole tokens, and larger ones take more of them.

    Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.
    """

    def __init__(
        self,
        processor: HubImageProcessor,
        tower: QwenVlTower,
        patches: Patches,
        frames: FramePatches | None,
        tokens_per_second: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """``tower``: on ``device`` in ``dtype``. ``frames`` ``None``: no videos. ``tokens_per_second``: positions in time."""
        self._processor = processor
        self._tower = tower
        self._patches = patches
        self._tokens_per_second = tokens_per_second
        self._videos = None if frames is None else QwenVlVideos(frames, tower, tokens_per_second, device, dtype)
        self._device = device
        self._dtype = dtype

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        """The tower."""
        return (self._tower,)

    @property
    def videos(self) -> QwenVlVideos | None:
        """By the same tower."""
        return self._videos

    def grid(self, width: int, height: int) -> Grid:
        """Rows and columns of tokens after the processor's scaling; see `ImageEncoder.grid`."""
        return self._patches.grid(width, height)

    def encode(self, images: Sequence[Image], grids: Sequence[Grid], runner: GraphRunner | None) -> Tensor:
        """Rows ``[sum of tokens, H]``; see `ImageEncoder.encode`."""
        pixels, cells = self._patches.cut(self._processor, images, grids)
        inputs = {"pixels": pixels.to(self._device, self._dtype), "cells": cells.to(self._device)}
        return encode_media(self._tower, inputs, runner)["rows"]

    def positions(self, placement: Placement) -> PromptPositions:
        """``[3, P]``, see `multi_axis_positions`."""
        return multi_axis_positions(placement, self._tokens_per_second)
