"""`decode_image`: the bytes of an image file as 8-bit RGB, the right way up."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from io import BytesIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.Image import Transpose
from PIL.TiffImagePlugin import TiffImageFile

from outrider.errors import InputError

__all__ = ["decode_image"]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that Pillow decodes in itself; others would start programs (PostScript) or read other files."""
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")
_SHOWN_BYTES = 8
_PHOTOMETRIC = 262
"""TIFF's tag for what the values mean; 0: the lowest is white."""
_TURNS: Mapping[object, Transpose] = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""What sets a picture of each EXIF orientation upright."""
_FILTERS = threading.Lock()
"""Held while the process's warning filters are others: two threads that swap them crosswise would leave them swapped."""


def decode_image(data: bytes, name: str) -> Image.Image:
    """The first frame of the image file ``data`` as RGB; ``name`` says in errors which one it is.

    EXIF orientation is applied, transparency is laid on white, 16-bit grey is scaled to 8 bits, grey and palettes become
    RGB.

    Raises:
        InputError: empty, of no known format, truncated or corrupt, without pixels, of so many pixels that it looks like
            an attack, or of a pixel format without an agreed range.
    """
    if not data:
        raise InputError(f"{name} is empty (0 bytes); give the bytes of a {', '.join(_FORMATS)} file")
    try:
        # Pillow only warns of an image that is up to twice too large; here that is refused like any larger one.
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)
            opened = Image.open(BytesIO(data), formats=_FORMATS)
            opened.load()
            image = _upright(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{name} has too many pixels to be decoded safely ({error}); scale it down") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name} is no image that can be read: {len(data)} bytes that begin with {data[:_SHOWN_BYTES].hex(' ')}; "
            f"allowed are {', '.join(_FORMATS)}"
        ) from error
    except Exception as error:  # decoders raise whatever corrupt data leads them to
        raise InputError(
            f"{name} is corrupt or truncated, {len(data)} bytes: {error}; copy or save it again"
        ) from error
    if 0 in image.size:
        raise InputError(f"{name} has no pixels: it is {image.width} × {image.height}")
    inverted = isinstance(opened, TiffImageFile) and opened.tag_v2.get(_PHOTOMETRIC) == 0
    return _rgb(image, inverted, name)


def _upright(image: Image.Image) -> Image.Image:
    """``image`` turned as its EXIF says; metadata that cannot be read turn nothing, as in viewers."""
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # whatever corrupt metadata lead the reader to; the pixels are whole
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image, inverted: bool, name: str) -> Image.Image:
    """``inverted``: the lowest value is white, which Pillow sees to for all but 16 bits."""
    if image.mode in ("I", "F"):
        raise InputError(
            f"{name} has 32-bit pixels (mode {image.mode}), whose range is not agreed; save it with 8 or 16 bits"
        )
    if image.mode in _SIXTEEN_BIT:
        return _from_sixteen_bits(image, inverted)
    if image.mode == "La":  # grey times its opacity, which Pillow only takes apart again
        image = image.convert("LA")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def _from_sixteen_bits(image: Image.Image, inverted: bool) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    if inverted:
        values = 65535 - values
    # 65535 = 255 · 257, so that black and white stay what they are; Pillow itself would cut off everything above 255.
    grey = ((values + 128) // 257).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")
