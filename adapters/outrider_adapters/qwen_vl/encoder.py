"""`QwenVlEncoder`: images of any resolution to decoder rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, cast

import torch
from PIL.Image import Image
from torch import Tensor, nn

from outrider_adapters.media import Grid, HubImageProcessor, ImageEncoder, Placement, PromptPositions
from outrider_adapters.qwen_vl.patches import Patches
from outrider_adapters.qwen_vl.positions import multi_axis_positions

__all__ = ["QwenVlEncoder"]


class _TowerOutput(Protocol):
    pooler_output: Tensor


class _Tower(Protocol):
    @abstractmethod
    def __call__(self, hidden_states: Tensor, *, grid_thw: Tensor) -> _TowerOutput: ...


class QwenVlEncoder(ImageEncoder):
    """An image keeps its shape: it is scaled to whole tokens, and larger ones take more of them.

    Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.
    """

    def __init__(
        self,
        processor: HubImageProcessor,
        tower: nn.Module,
        patches: Patches,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """``tower``: transformers' own module, on ``device`` in ``dtype``."""
        self._processor = processor
        self._tower = cast("_Tower", tower)
        self._patches = patches
        self._device = device
        self._dtype = dtype

    def grid(self, width: int, height: int) -> Grid:
        """Rows and columns of tokens after the processor's scaling; see `ImageEncoder.grid`."""
        return self._patches.grid(width, height)

    def encode(self, images: Sequence[Image], grids: Sequence[Grid]) -> Tensor:
        """Rows ``[sum of tokens, H]``; see `ImageEncoder.encode`."""
        pixels, cells = self._patches.cut(self._processor, images, grids)
        return self._tower(pixels.to(self._device, self._dtype), grid_thw=cells.to(self._device)).pooler_output

    def positions(self, placement: Placement) -> PromptPositions:
        """``[3, P]``, see `multi_axis_positions`."""
        return multi_axis_positions(placement)
