"""Draws rows of digits that no model was trained on, as PNG files; run as ``python -m examples.digits.draw OUT_DIR``.

A file's name says what it shows: ``row-73142.png``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import torch
from PIL import Image
from torch import Tensor

from examples.digits.dialogue import MAX_DIGITS
from examples.digits.render import CLEAN, draw
from examples.digits.scans import Scans, load_scans
from examples.digits.settings import SIDE

__all__ = ["draw_row", "image_of"]


def draw_row(digits: Sequence[int], scans: Scans, generator: torch.Generator, side: int = SIDE) -> Image.Image:
    """An image of ``digits`` (eight at most), each a random scan of ``scans``, at a random place."""
    padded = [*digits, *[0] * (MAX_DIGITS - len(digits))]
    drawn = scans.draw(torch.tensor([padded], device=generator.device), generator)
    count = torch.tensor([len(digits)], device=generator.device)
    return image_of(draw(drawn, count, CLEAN, generator, side).pixels[0]).convert("L")


def image_of(pixels_CYX: Tensor) -> Image.Image:
    """Pixels ``[3, Y, X]`` from 0 to 255 as an image."""
    return Image.fromarray(pixels_CYX.byte().permute(1, 2, 0).cpu().numpy())


@click.command()
@click.argument("out_dir", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--digits", multiple=True, help="A row to draw, such as 73142; may be repeated. Random rows where none is given."
)
@click.option(
    "--count", type=click.IntRange(min=1), default=4, show_default=True, help="Images of each row, or random rows."
)
@click.option("--side", type=click.IntRange(min=16), default=SIDE, show_default=True, help="Pixels of each side.")
@click.option("--seed", default=0, show_default=True)
def main(out_dir: Path, digits: tuple[str, ...], count: int, side: int, seed: int) -> None:
    """Write PNG files of held-out digits into OUT_DIR."""
    wrong = [row for row in digits if not (row.isdecimal() and len(row) <= MAX_DIGITS)]
    if wrong:
        raise click.BadParameter(
            f"{', '.join(wrong)}: a row is 1 to {MAX_DIGITS} digits, such as 73142", param_hint="--digits"
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    held_out = load_scans(torch.device("cpu"))[1]
    rows = [row for row in digits for _ in range(count)] or [_random_row(generator) for _ in range(count)]
    names: dict[str, int] = {}
    for row in rows:
        names[row] = names.get(row, 0) + 1
        suffix = f"-{names[row]}" if names[row] > 1 else ""
        path = out_dir / f"row-{row}{suffix}.png"
        draw_row([int(digit) for digit in row], held_out, generator, side).save(path, optimize=True)
        click.echo(path)


def _random_row(generator: torch.Generator) -> str:
    length = int(torch.randint(1, MAX_DIGITS + 1, (), generator=generator))
    return "".join(str(int(digit)) for digit in torch.randint(10, (length,), generator=generator))


if __name__ == "__main__":
    main()
