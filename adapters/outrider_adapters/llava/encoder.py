"""`LlavaEncoder`: images to decoder rows by a tower and a projector, `LlavaTower`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as functional
from attrs import frozen
from PIL.Image import Image
from torch import Tensor, nn

from outrider.errors import InputError
from outrider.graphs import encode_media
from outrider.interfaces import GraphRunner, MediaBody
from outrider.types import Axis, BodyCalls, BufferSlot
from outrider_adapters.media import Grid, HubImageProcessor, ImageEncoder, Placement, PromptPositions, process
from outrider_adapters.nn import Activation

__all__ = ["FeatureChoice", "LlavaEncoder", "LlavaTower", "Projector"]

_COUNTS = (1, 2, 4, 8)

_MOST_SCALED_PIXELS = 1 << 28
"""Pixels of an image while it is scaled: 0.8 GB."""


class _TowerOutput(Protocol):
    hidden_states: tuple[Tensor, ...]


class _Tower(Protocol):
    @abstractmethod
    def __call__(self, pixel_values: Tensor, *, output_hidden_states: bool) -> _TowerOutput: ...


@frozen
class FeatureChoice:
    """Which of the tower's states are used, side by side, and how many leading rows of each are left out."""

    layers: tuple[int, ...]
    skipped: int


@frozen(eq=False)
class Projector:
    """Two linear maps with a function between, from the tower's width to the decoder's."""

    first: Tensor
    first_bias: Tensor | None
    activation: Activation
    second: Tensor
    second_bias: Tensor | None

    def __call__(self, features: Tensor) -> Tensor:
        """Fresh ``[..., H]`` of ``features [..., width of all states]``."""
        inner = self.activation(functional.linear(features, self.first, self.first_bias))
        return functional.linear(inner, self.second, self.second_bias)


class LlavaTower(MediaBody):
    """``pixels [images, 3, side, side]`` to ``rows [images, tokens, H]``: transformers' tower, and the projector."""

    def __init__(
        self,
        module: nn.Module,
        choice: FeatureChoice,
        projector: Projector,
        side: int,
        num_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """``module``: transformers' own, on ``device`` in ``dtype``, for images of ``side`` pixels."""
        self._module = cast("_Tower", module)
        self._choice = choice
        self._projector = projector
        self.num_tokens = num_tokens
        self.device = device
        self.dtype = dtype
        self._pixels = BufferSlot("pixels", Axis.REQUESTS, (3, side, side), dtype)
        self._rows = BufferSlot("rows", Axis.REQUESTS, (num_tokens, projector.second.shape[0]), dtype)

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        """Pixels as the processor makes them."""
        return (self._pixels,)

    @property
    def outputs(self) -> tuple[BufferSlot, ...]:
        """Rows for the decoder."""
        return (self._rows,)

    @property
    def counts(self) -> tuple[int, ...]:
        """1, 2, 4 and 8: a few graphs, whose memory many images do not add to."""
        return _COUNTS

    @property
    def eager_because(self) -> None:
        """It can be captured: neither tower nor projector reads a value on the host."""
        return

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:  # noqa: ARG002
        """Rows of all images; see `GraphBody`."""
        states = self._module(buffers["pixels"], output_hidden_states=True).hidden_states
        chosen = [states[layer][:, self._choice.skipped :] for layer in self._choice.layers]
        return {"rows": self._projector(torch.cat(chosen, dim=-1))}


class LlavaEncoder(ImageEncoder):
    """Every image takes the same number of tokens; positions are those of text.

    Source: Liu et al. 2023, "Visual Instruction Tuning" and "Improved Baselines with Visual Instruction Tuning".
    """

    def __init__(self, processor: HubImageProcessor, tower: LlavaTower) -> None:
        """``processor``: makes pixels as ``tower`` takes them."""
        self._processor = processor
        self._tower = tower
        self._grid = Grid(1, tower.num_tokens)

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        """The tower."""
        return (self._tower,)

    @property
    def videos(self) -> None:
        """It reads images only."""
        return

    def grid(self, width: int, height: int) -> Grid:
        """The same single row for an image of any size, which the processor scales and crops; see `ImageEncoder.grid`."""
        edge = self._processor.size.shortest_edge
        ratio = max(width, height) / min(width, height)
        # A processor that scales by the shorter side makes a whole picture of that height before it crops.
        if edge is not None and edge * edge * ratio > _MOST_SCALED_PIXELS:
            raise InputError(
                f"the longer side is {ratio:g} times the shorter one, and scaled to {edge} pixels on the shorter side it "
                f"would have {edge * edge * ratio:.0f} pixels, at most {_MOST_SCALED_PIXELS} are allowed; crop it"
            )
        return self._grid

    def encode(
        self,
        images: Sequence[Image],
        grids: Sequence[Grid],  # noqa: ARG002 - all are alike
        runner: GraphRunner | None,
    ) -> Tensor:
        """Rows ``[images · tokens, H]``; see `ImageEncoder.encode`."""
        pixels = process(self._processor, images)["pixel_values"].to(self._tower.device, self._tower.dtype)
        return encode_media(self._tower, {"pixels": pixels}, runner)["rows"].flatten(0, 1)

    def positions(self, placement: Placement) -> PromptPositions:
        """``[P]``: images count as text does."""
        return PromptPositions(torch.arange(len(placement.token_ids)), 0)
