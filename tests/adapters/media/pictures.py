"""Small pictures and the files they are kept in."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """RGB noise in large blots, so that scaling leaves something of it."""
    generator = np.random.default_rng(seed)
    blots = generator.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(blots).resize((width, height), Image.Resampling.NEAREST)


def encoded(image: Image.Image, file_format: str = "PNG", exif: Image.Exif | None = None) -> bytes:
    """``image`` as a file; lossless where the format can."""
    buffer = BytesIO()
    if exif is not None:
        image.save(buffer, file_format, exif=exif)
    elif file_format == "WEBP":
        image.save(buffer, file_format, lossless=True)
    else:
        image.save(buffer, file_format)
    return buffer.getvalue()


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file of `picture`."""
    return encoded(picture(width, height, seed))
