"""`ImageEncoder`, `VideoEncoder`: what a family of multimodal models does with media, between decoding and placing them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from attrs import frozen
from PIL.Image import Image
from torch import Tensor

from outrider.interfaces import GraphRunner, MediaBody
from outrider_adapters.media.placement import Grid, Placement

__all__ = ["ImageEncoder", "PromptPositions", "VideoEncoder"]


@frozen(eq=False)
class PromptPositions:
    """``positions``: ``[P]`` or ``[3, P]`` int64 on the CPU. ``offset``: as `PreparedPrompt.position_offset`."""

    positions: Tensor
    offset: int


class VideoEncoder(Protocol):
    """Processor, tower and projector of one model, for videos."""

    @abstractmethod
    def grid(self, width: int, height: int, num_frames: int, frames_per_second: float) -> Grid:
        """The tokens a video of so many frames of this many pixels takes; nothing is encoded.

        Raises:
            InputError: the model's processor refuses such a video.
        """
        ...

    @abstractmethod
    def encode(self, frames: Iterable[Image], num_frames: int, grid: Grid, runner: GraphRunner | None) -> Tensor:
        """Fresh rows ``[tokens, H]`` of one video; ``grid`` is what `grid` said of it, ``runner`` as for `ImageEncoder.encode`.

        ``frames``, ``num_frames`` of them, are taken once, in order, and none is kept: they need not be in memory together.
        """
        ...


class ImageEncoder(Protocol):
    """Processor, tower and projector of one model."""

    @property
    @abstractmethod
    def bodies(self) -> tuple[MediaBody, ...]:
        """What `encode` runs through a runner; the same objects every time."""
        ...

    @property
    @abstractmethod
    def videos(self) -> VideoEncoder | None:
        """What encodes videos; ``None`` where the model reads images only."""
        ...

    @abstractmethod
    def grid(self, width: int, height: int) -> Grid:
        """The tokens an image of this many pixels takes; nothing is encoded.

        Raises:
            InputError: the model's processor refuses such an image.
        """
        ...

    @abstractmethod
    def encode(self, images: Sequence[Image], grids: Sequence[Grid], runner: GraphRunner | None) -> Tensor:
        """Fresh rows ``[sum of tokens, H]`` for the decoder, image after image, in the model's dtype on its device.

        ``grids`` are what `grid` said of each image. Bodies are run through ``runner``, or directly without one:
        `outrider.graphs.encode_media` does either.
        """
        ...

    @abstractmethod
    def positions(self, placement: Placement) -> PromptPositions:
        """Rope positions of a prompt with its media placed."""
        ...
