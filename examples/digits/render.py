"""Draws images of digits from scans, whole batches at a time and on any device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from attrs import evolve, frozen
from torch import Tensor

from examples.digits.layout import Layout, random_layout
from examples.digits.settings import SIDE

__all__ = ["CLEAN", "IMAGE_MEAN", "IMAGE_STD", "PLAIN", "VARIED", "Drawing", "Look", "draw", "normalized", "resized"]

IMAGE_MEAN = IMAGE_STD = 0.5
_MARGIN = 1.3
_POINTS = 24
"""A scan is warped on a grid of this many points a side, which is `_MARGIN` times as wide as the scan."""


@frozen
class Look:
    """How far images differ from plain ones; every number is the largest deviation."""

    turn: float
    shear: float
    stretch: float
    bend: float
    weight: float
    sharpness: float
    noise: float
    tint: float
    shade: float


PLAIN = Look(turn=0.0, shear=0.0, stretch=0.08, bend=0.0, weight=0.0, sharpness=0.0, noise=0.01, tint=0.05, shade=0.0)
"""Place, size and colours differ."""
CLEAN = evolve(PLAIN, noise=0.0, tint=0.0)
"""Grey, without noise: files of these are small."""
VARIED = Look(turn=0.3, shear=0.3, stretch=0.3, bend=0.15, weight=0.5, sharpness=1.2, noise=0.06, tint=0.08, shade=0.1)
"""The writing differs, too: what a model is trained on."""


@frozen(eq=False)
class Drawing:
    """``pixels_BCYX [B, 3, S, S]`` float32, whole numbers 0 to 255, and where the digits stand."""

    pixels: Tensor
    layout: Layout


def draw(scans_BKYX: Tensor, counts_B: Tensor, look: Look, generator: torch.Generator, side: int = SIDE) -> Drawing:
    """Images of ``counts_B`` digits each, of ``scans_BKYX [B, K, 8, 8]`` in reading order; device only."""
    # Pixels are whole numbers up to 255: more than bfloat16 can tell apart.
    with torch.autocast(scans_BKYX.device.type, enabled=False):
        layout = random_layout(counts_B, scans_BKYX.shape[1], generator)
        ink_BYX = _placed(_written(scans_BKYX, look, generator), layout, side)
        return Drawing(_coloured(ink_BYX, look, generator), layout)


def resized(pixels_BCYX: Tensor, side: int) -> Tensor:
    """``pixels_BCYX`` at another size, by the filter of CLIP's processor: Pillow's, which rounds after each axis."""
    for size in ((pixels_BCYX.shape[2], side), (side, side)):
        scaled = functional.interpolate(pixels_BCYX, size, mode="bicubic", antialias=True, align_corners=False)
        pixels_BCYX = scaled.round().clamp(0.0, 255.0)
    return pixels_BCYX


def normalized(pixels_BCYX: Tensor) -> Tensor:
    """What the processor makes of pixels from 0 to 255."""
    return (pixels_BCYX / 255.0 - IMAGE_MEAN) / IMAGE_STD


def _written(scans_BKYX: Tensor, look: Look, generator: torch.Generator) -> Tensor:
    """Each scan turned, sheared, stretched, bent, bolder or lighter: ``[B, K, P, P]``."""
    batch, slots = scans_BKYX.shape[:2]
    count, device = batch * slots, scans_BKYX.device

    def spread(*shape: int) -> Tensor:
        return 2.0 * torch.rand((count, *shape), generator=generator, device=device) - 1.0

    turn, shear = spread() * look.turn, spread() * look.shear
    widen, heighten = torch.exp(spread() * look.stretch), torch.exp(spread() * look.stretch)
    cos, sin = torch.cos(turn), torch.sin(turn)
    zero = torch.zeros_like(cos)
    rows = (
        torch.stack((cos * widen, (shear * cos - sin) * heighten, zero), dim=1),
        torch.stack((sin * widen, (shear * sin + cos) * heighten, zero), dim=1),
    )
    affine = torch.stack(rows, dim=1) * _MARGIN
    grid = functional.affine_grid(affine, [count, 1, _POINTS, _POINTS], align_corners=False)
    if look.bend:
        bends = functional.interpolate(spread(2, 4, 4), (_POINTS, _POINTS), mode="bicubic", align_corners=True)
        grid = grid + look.bend * bends.permute(0, 2, 3, 1)
    flat = scans_BKYX.reshape(count, 1, *scans_BKYX.shape[2:])
    ink = functional.grid_sample(flat, grid, mode="bicubic", padding_mode="zeros", align_corners=False)
    ink = ink.clamp(min=0.0) ** torch.exp(spread(1, 1, 1) * look.weight)
    steep = 1.0 + look.sharpness * torch.rand((count, 1, 1, 1), generator=generator, device=device)
    return (((ink - 0.5) * steep + 0.5).clamp(0.0, 1.0) * (ink > 0)).view(batch, slots, _POINTS, _POINTS)


def _placed(ink_BKPP: Tensor, layout: Layout, side: int) -> Tensor:
    """The ink of all digits of an image: ``[B, S, S]``, the darkest digit at each pixel."""
    across = _spread_weights(layout.x, layout.size, side)
    down = _spread_weights(layout.y, layout.size, side)
    placed_BKYX = down @ ink_BKPP @ across.transpose(-1, -2)
    return (placed_BKYX * layout.there[..., None, None]).amax(dim=1)


def _spread_weights(centre_BK: Tensor, size_BK: Tensor, side: int) -> Tensor:
    """How much each point of a digit's grid counts at each pixel of a line: ``[B, K, S, P]``; a triangle filter."""
    box_BK = size_BK * _MARGIN
    pixel_S = (torch.arange(side, device=centre_BK.device) + 0.5) / side
    place_BKS = ((pixel_S - centre_BK[..., None]) / box_BK[..., None] + 0.5) * _POINTS - 0.5
    points_P = torch.arange(_POINTS, device=centre_BK.device)
    width_BK = (_POINTS / (box_BK * side)).clamp(min=1.0)
    distance_BKSP = (place_BKS[..., None] - points_P).abs()
    return (1.0 - distance_BKSP / width_BK[..., None, None]).clamp(min=0.0) / width_BK[..., None, None]


def _coloured(ink_BYX: Tensor, look: Look, generator: torch.Generator) -> Tensor:
    batch, side = ink_BYX.shape[:2]
    device = ink_BYX.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand((batch, *shape), generator=generator, device=device)

    light = 0.8 + 0.2 * uniform(1) - look.tint * uniform(3)
    dark = 0.25 * uniform(1) + look.tint * uniform(3)
    inverted = uniform(1) < 0.35
    paper, pen = torch.where(inverted, dark, light), torch.where(inverted, light, dark)
    shown = paper[..., None, None] + (pen - paper)[..., None, None] * ink_BYX[:, None]
    if look.shade:
        across = torch.linspace(-1.0, 1.0, side, device=device)
        angle = 2.0 * math.pi * uniform(1, 1)
        ramp = torch.cos(angle) * across + torch.sin(angle) * across[:, None]
        shown = shown + look.shade * uniform(1, 1, 1) * ramp[:, None]
    noise = torch.randn(shown.shape, generator=generator, device=device)
    shown = shown + look.noise * uniform(1, 1, 1) * noise
    return (shown * 255.0).round().clamp(0.0, 255.0)
