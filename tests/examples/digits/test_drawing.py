"""Images: where digits stand, what they show, and that the processor sees in a file just what was drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import Tensor

from examples.digits.draw import image_of, main
from examples.digits.layout import random_layout
from examples.digits.render import PLAIN, VARIED, draw, normalized, resized
from examples.digits.scans import NUM_TRAINED, load_scans
from examples.digits.settings import SIDE
from tests.examples.digits.pair import small_processor

CPU = torch.device("cpu")
COUNTS = torch.arange(9).repeat(40)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_rows(seed: int = 0, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Scans of random digits, and how many of each row are shown."""
    generator = seeded(seed)
    digits = torch.randint(10, (batch, 8), generator=generator)
    return load_scans(CPU)[0].draw(digits, generator), torch.arange(batch) % 9


def test_digits_stand_inside_and_apart_in_reading_order() -> None:
    layout = random_layout(COUNTS, 8, seeded())
    assert torch.equal(layout.there.sum(dim=1), COUNTS)
    for x, y, size, there in zip(layout.x, layout.y, layout.size, layout.there, strict=True):
        boxes = [tuple(float(value) for value in box) for box in torch.stack((x, y, size), dim=1)[there]]
        for left, top, height in boxes:
            assert height / 2 - 0.05 <= left <= 1.05 - height / 2
            assert height / 2 - 0.05 <= top <= 1.05 - height / 2
        for index, (x1, y1, size1) in enumerate(boxes):
            for x2, y2, size2 in boxes[index + 1 :]:
                apart = 0.4 * (size1 + size2)
                assert x2 - x1 >= apart or y2 - y1 >= apart, "the later one is to the right, or below"


def test_ink_is_where_the_layout_says_and_nowhere_else() -> None:
    scans, counts = drawn_rows()
    drawing = draw(scans, counts, PLAIN, seeded(1))
    pixels = drawing.pixels.mean(dim=1)
    paper = pixels.flatten(1).median(dim=1).values
    ink = (pixels - paper[:, None, None]).abs() > 40
    centre = (torch.arange(SIDE) + 0.5) / SIDE
    layout = drawing.layout
    reach = layout.size * 0.7
    near_x = (centre - layout.x[..., None]).abs() < reach[..., None]
    near_y = (centre - layout.y[..., None]).abs() < reach[..., None]
    near = (near_y[..., :, None] & near_x[..., None, :]) & layout.there[..., None, None]
    assert not (ink & ~near.any(dim=1)).any()
    inked = (ink[:, None] & near).flatten(2).any(dim=-1)
    assert torch.equal(inked, layout.there)


def test_a_drawing_is_of_its_seed() -> None:
    scans, counts = drawn_rows()
    first, again = (draw(scans, counts, VARIED, seeded(5)).pixels for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, draw(scans, counts, VARIED, seeded(6)).pixels)
    assert torch.equal(first, first.round())
    assert 0 <= first.min() < first.max() <= 255


def test_no_scan_is_both_trained_on_and_held_out() -> None:
    trained, held_out = load_scans(CPU)
    assert (len(trained.images), len(held_out.images)) == (NUM_TRAINED, 1797 - NUM_TRAINED)
    assert int(trained.counts.sum()) == NUM_TRAINED
    for scans in (trained, held_out):
        used = torch.cat([row[:count] for row, count in zip(scans.rows, scans.counts, strict=True)])
        assert torch.equal(used.sort().values, torch.arange(len(scans.images)))
    distances = torch.cdist(held_out.images.flatten(1), trained.images.flatten(1))
    assert distances.min() > 0


def test_the_processor_reads_from_a_file_what_was_drawn(tmp_path: Path) -> None:
    scans, counts = drawn_rows()
    pixels = draw(scans, counts, VARIED, seeded(2)).pixels[:8]
    for index, image in enumerate(pixels):
        image_of(image).save(tmp_path / f"{index}.png")
    files: list[Image.Image] = []
    for index in range(8):
        with Image.open(tmp_path / f"{index}.png") as file:
            files.append(file.copy())
    read = small_processor().pixels(files)
    torch.testing.assert_close(read, normalized(pixels), atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", [40, 96, 150])
def test_the_processor_resizes_as_training_does(side: int) -> None:
    scans, counts = drawn_rows()
    pixels = draw(scans, counts, VARIED, seeded(3), side).pixels[:8]
    read = small_processor().pixels([image_of(image) for image in pixels])
    steps = (read - normalized(resized(pixels, SIDE))).abs() * 127.5
    assert steps.max() < 1.01
    assert steps.mean() < 0.01, "nearly all pixels are equal"


def test_files_are_small_and_named_by_what_they_show(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--digits", "73142", "--digits", "8", "--count", "2"])
    assert result.exit_code == 0, result.output
    names = ["row-73142-2.png", "row-73142.png", "row-8-2.png", "row-8.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(path.stat().st_size < 1500 for path in tmp_path.iterdir())
    with Image.open(tmp_path / "row-8.png") as image:
        assert image.size == (SIDE, SIDE)
    refused = CliRunner().invoke(main, [str(tmp_path), "--digits", "12x"])
    assert refused.exit_code == 2
    assert "12x: a row is 1 to 8 digits" in refused.output
