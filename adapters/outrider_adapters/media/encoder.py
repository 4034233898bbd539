"""`ImageEncoder`: what a family of multimodal models does with images, between decoding and placing them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from attrs import frozen
from PIL.Image import Image
from torch import Tensor

from outrider_adapters.media.placement import Grid, Placement

__all__ = ["ImageEncoder", "PromptPositions"]


@frozen(eq=False)
class PromptPositions:
    """``positions``: ``[P]`` or ``[3, P]`` int64 on the CPU. ``offset``: as `PreparedPrompt.position_offset`."""

    positions: Tensor
    offset: int


class ImageEncoder(Protocol):
    """Processor, tower and projector of one model."""

    @abstractmethod
    def grid(self, width: int, height: int) -> Grid:
        """The tokens an image of this many pixels takes; nothing is encoded.

        Raises:
            InputError: the model's processor refuses such an image.
        """
        ...

    @abstractmethod
    def encode(self, images: Sequence[Image], grids: Sequence[Grid]) -> Tensor:
        """Rows ``[sum of tokens, H]`` for the decoder, image after image, in the model's dtype on its device.

        ``grids`` are what `grid` said of each image.
        """
        ...

    @abstractmethod
    def positions(self, placement: Placement) -> PromptPositions:
        """Rope positions of a prompt with its images placed."""
        ...
