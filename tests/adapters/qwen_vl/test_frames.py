"""Frames cut into patches as transformers' video processor does it, its limits, and where its config is found."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError
from outrider_adapters.media import read_hub_config
from outrider_adapters.qwen_vl.frames import FramePatches, read_frame_patches
from tests.adapters.llama.reference import edit_config
from tests.adapters.media.clips import MAX_PIXELS, SIDE, clip, patches_of
from tests.adapters.media.models import qwen

CONFIG = "video_preprocessor_config.json"
OWN = {"shortest_edge": SIDE * SIDE, "longest_edge": 3 * SIDE * SIDE}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return qwen().save(tmp_path)


def patches(directory: Path) -> FramePatches:
    checkpoint = Checkpoint(directory)
    return read_frame_patches(checkpoint, read_hub_config(checkpoint))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [(56, 56), (100, 60), (40, 90), (5, 3), (300, 300), (500, 9)])
def test_patches_are_those_of_the_video_processor(directory: Path, size: tuple[int, int], count: int) -> None:
    video, cutter = clip(*size, count, 1.0, count), patches(directory)
    grid = cutter.grid(*size, count, 1.0)
    expected, cells = patches_of(video.frames)
    assert (grid.frames, 2 * grid.height, 2 * grid.width) == cells
    frames = (Image.open(BytesIO(data)).convert("RGB") for data in video.frames)
    assert float((cutter.cut(frames, grid, count) - expected).abs().max()) < 1e-5


def test_frames_swapped_within_a_patch_are_other_patches(directory: Path) -> None:
    cutter = patches(directory)
    frames = [Image.open(BytesIO(data)) for data in clip(56, 56, 2, 1.0).frames]
    grid = cutter.grid(56, 56, 2, 1.0)
    there, back = cutter.cut(frames, grid, 2), cutter.cut(frames[::-1], grid, 2)
    assert not torch.equal(there, back)
    turned = back.view(-1, 3, 2, 14 * 14).flip(2).flatten(1)
    assert torch.equal(there, turned)


@pytest.mark.parametrize(("fps", "seconds"), [(1.0, 2.0), (2.0, 1.0), (0.5, 4.0), (24.0, 1 / 12)])
def test_two_frames_are_one_step_in_time(directory: Path, fps: float, seconds: float) -> None:
    grid = patches(directory).grid(56, 56, 9, fps)
    assert grid.frames == 5
    assert grid.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("count", [1, 10, 40, 1000])
def test_a_budget_is_shared_by_the_frames(directory: Path, count: int) -> None:
    """Of 100 tokens, nine tenths: 90 tokens for all, as two frames are one token, but never less than the floor."""
    size = {"shortest_edge": 2 * SIDE * SIDE, "longest_edge": 50 * SIDE * SIDE}
    edit_config(directory, CONFIG, cap_pixels_per_frame=True, max_video_tokens=100, size=size)
    grid = patches(directory).grid(2000, 2000, count, 1.0)
    most = max(min(50 * SIDE * SIDE, int(100 * SIDE * SIDE * 0.9) * 2 // count), int(2 * SIDE * SIDE * 1.05))
    video = clip(2000, 2000, 1, 1.0)
    assert (1, 2 * grid.height, 2 * grid.width) == patches_of(video.frames, most)[1]
    edit_config(directory, CONFIG, cap_pixels_per_frame=...)
    free = patches(directory).grid(2000, 2000, count, 1.0)
    assert (free.height, free.width) == (7, 7)


def test_the_config_is_found_where_transformers_looks_for_it(directory: Path) -> None:
    """The processor's section before a file of its own before that of images; a silent one means its class's defaults."""
    assert patches(directory).max_pixels == MAX_PIXELS
    (directory / "processor_config.json").write_text(json.dumps({"video_processor": {"size": OWN}}))
    assert patches(directory).max_pixels == OWN["longest_edge"]
    (directory / "processor_config.json").unlink()
    edit_config(directory, CONFIG, size=...)
    assert (patches(directory).min_pixels, patches(directory).max_pixels) == (128 * 28 * 28, 768 * 28 * 28)
    edit_config(directory, CONFIG, min_pixels=784, max_pixels=7840)
    assert (patches(directory).min_pixels, patches(directory).max_pixels) == (784, 7840)
    (directory / CONFIG).unlink()
    assert patches(directory).max_pixels == 28 * 28 * 24


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"video_processor_type": "LlavaNextVideoProcessor"}, "is LlavaNextVideoProcessor, allowed are Qwen2VL"),
        ({"do_resize": False}, "refuses images of 3 × 2 pixels"),
        ({"patch_size": 28}, "the video processor cuts frames into [[1, 2, 2]] patches"),
        ({"temporal_patch_size": 3}, "of 1764 values, expected [[1, 4, 4]] of 1176"),
        ({"size": {"height": 56, "width": 56}}, "longest_edge"),
        ({"size": {"shortest_edge": "small", "longest_edge": 9000}}, "'<' not supported"),
        ({"cap_pixels_per_frame": "yes"}, "cap_pixels_per_frame"),
    ],
)
def test_a_processor_that_cannot_be_is_refused(directory: Path, changes: dict[str, object], said: str) -> None:
    edit_config(directory, CONFIG, **changes)
    with pytest.raises(CheckpointError) as caught:
        patches(directory)
    assert said in str(caught.value), str(caught.value)
    assert CONFIG in str(caught.value)


def test_shapes_that_the_processor_refuses(directory: Path) -> None:
    with pytest.raises(InputError, match="the longer side is 300 times the shorter one"):
        patches(directory).grid(3000, 10, 4, 1.0)
