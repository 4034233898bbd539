"""Small videos, and what transformers' video processor makes of their frames, computed with numpy.

The video processor itself imports torchvision, so its scaling and its ``patchify`` are written out here once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from packaging.version import Version
from PIL import Image
from torch import Tensor

from outrider.interfaces import VideoFrames
from tests.adapters.media.pictures import png

PATCH, MERGE, TEMPORAL = 14, 2, 2
SIDE = PATCH * MERGE
MIN_PIXELS, MAX_PIXELS = 2 * SIDE * SIDE, 6 * SIDE * SIDE
"""Those of the small models' video processor, which are not those of their image processor."""
MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
FRACTIONS = Version(version("transformers")) >= Version("5.24")
"""Whether this transformers keeps fractions of a second between frames; older ones cut them off, unlike the training."""


def clip(width: int, height: int, num_frames: int, fps: float, seed: int = 0) -> VideoFrames:
    """A video whose frames all differ."""
    return VideoFrames(tuple(png(width, height, 100 * seed + number) for number in range(num_frames)), fps)


def scaled(width: int, height: int, most: int = MAX_PIXELS, least: int = MIN_PIXELS) -> tuple[int, int]:
    """Width and height of frames after scaling to whole tokens."""
    sides = (width, height)
    across, down = (round(side / SIDE) for side in sides)
    if across * down * SIDE * SIDE > most:
        across, down = (max(math.floor(side * math.sqrt(most / (width * height)) / SIDE), 1) for side in sides)
    elif across * down * SIDE * SIDE < least:
        across, down = (math.ceil(side * math.sqrt(least / (width * height)) / SIDE) for side in sides)
    return across * SIDE, down * SIDE


def patches_of(frames: Sequence[bytes], most: int = MAX_PIXELS) -> tuple[Tensor, tuple[int, int, int]]:
    """``pixel_values_videos`` of one video, and its row of ``video_grid_thw``."""
    images = [Image.open(BytesIO(data)).convert("RGB") for data in frames]
    width, height = scaled(*images[0].size, most)
    values = [np.asarray(each.resize((width, height), Image.Resampling.BICUBIC)) / 255 for each in images]
    values += [values[-1]] * (-len(values) % TEMPORAL)
    stack: NDArray[np.float64] = np.stack([((each - MEAN) / STD).transpose(2, 0, 1) for each in values])
    times, rows, columns = len(values) // TEMPORAL, height // PATCH, width // PATCH
    cut = stack.reshape(times, TEMPORAL, 3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    flat = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(times * rows * columns, -1)
    return torch.tensor(flat, dtype=torch.float32), (times, rows, columns)


def video_inputs(videos: Sequence[VideoFrames]) -> dict[str, Tensor]:
    """What a transformers model is called with for ``videos``."""
    made = [patches_of(video.frames) for video in videos]
    return {
        "pixel_values_videos": torch.cat([pixels for pixels, _ in made]),
        "video_grid_thw": torch.tensor([cells for _, cells in made]),
        "second_per_grid_ts": torch.tensor([TEMPORAL / video.frames_per_second for video in videos]),
    }
