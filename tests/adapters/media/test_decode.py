"""Image files of every kind become the RGB picture a viewer shows, or an error that says what was found."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from outrider.errors import InputError
from outrider_adapters.media import decode_image
from tests.adapters.media.pictures import encoded, picture, png

Transform = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


def pixels(data: bytes) -> NDArray[np.uint8]:
    image = decode_image(data, "image 1 of 1")
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("size", [(1, 1), (17, 9), (10000, 10)])
def test_lossless_formats_come_back_as_they_were(file_format: str, size: tuple[int, int]) -> None:
    original = picture(*size, seed=1)
    assert np.array_equal(pixels(encoded(original, file_format)), np.asarray(original))


def test_jpeg_comes_back_nearly() -> None:
    original = Image.linear_gradient("L").convert("RGB")
    difference = pixels(encoded(original, "JPEG")).astype(int) - np.asarray(original)
    assert abs(difference).max() < 16


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "BMP", "TIFF", "JPEG", "GIF"])
def test_a_file_that_is_cut_off_anywhere_is_refused_and_never_half_a_picture(file_format: str) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), file_format)
    assert pixels(whole).shape == noise.shape
    for tenth in range(1, 10):
        with pytest.raises(InputError, match=r"corrupt or truncated|no image that can be read"):
            pixels(whole[: len(whole) * tenth // 10])


_TURNED: dict[int, Transform] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", [0, *sorted(_TURNED), 9])
def test_exif_orientation_is_applied(orientation: int, file_format: str) -> None:
    """Orientations as the EXIF standard tabulates them: where row 0 and column 0 of the stored picture are seen."""
    original = picture(12, 7, seed=2)
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = pixels(encoded(original, file_format, exif))
    assert np.array_equal(seen, _TURNED.get(orientation, _TURNED[1])(np.asarray(original)))


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0"])
def test_metadata_that_cannot_be_read_do_not_spoil_the_picture(exif: bytes, file_format: str) -> None:
    original = picture(12, 7, seed=2)
    buffer = BytesIO()
    original.save(buffer, file_format, exif=exif)
    assert np.array_equal(pixels(buffer.getvalue()), pixels(encoded(original, file_format)))


def test_grey_is_the_same_in_all_channels() -> None:
    grey = picture(9, 5, seed=3).convert("L")
    seen = pixels(encoded(grey))
    assert np.array_equal(seen, np.repeat(np.asarray(grey)[:, :, None], 3, axis=2))


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_cut_off(file_format: str) -> None:
    values = np.array([[0, 257, 128 * 257 + 1, 65535, 65407, 127]], dtype=np.uint16)
    seen = pixels(encoded(Image.fromarray(values), file_format))
    assert seen[0, :, 0].tolist() == [0, 1, 128, 255, 255, 0]
    assert (seen == seen[:, :, :1]).all()


def grey_tiff(values: list[int], bits: int, photometric: int) -> bytes:
    """One row of grey in a minimal TIFF, which Pillow would only write with black as the lowest value."""
    rows = struct.pack(f"<{len(values)}{'B' if bits == 8 else 'H'}", *values)
    tags = [
        (256, len(values)),
        (257, 1),
        (258, bits),
        (259, 1),
        (262, photometric),
        (277, 1),
        (278, 1),
        (279, len(rows)),
    ]
    start = 10 + 12 * (len(tags) + 1) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted([*tags, (273, start)]))
    return b"II*\0" + struct.pack("<IH", 8, len(tags) + 1) + entries + bytes(4) + rows


@pytest.mark.parametrize("bits", [8, 16])
def test_where_the_lowest_value_is_white_it_is_white(bits: int) -> None:
    full = (1 << bits) - 1
    values = [0, full // 255 * 10, full]
    assert pixels(grey_tiff(values, bits, photometric=1))[0, :, 0].tolist() == [0, 10, 255]
    assert pixels(grey_tiff(values, bits, photometric=0))[0, :, 0].tolist() == [255, 245, 0]


def test_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    data = [png(200, 200, seed) for seed in range(4)]
    before = list(warnings.filters)

    def decode(number: int) -> None:
        for _ in range(20):
            pixels(data[number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decode, range(4)))
    assert list(warnings.filters) == before


def test_sixteen_bit_transparency_is_white() -> None:
    values = np.array([[1000, 40000]], dtype=np.uint16)
    buffer = BytesIO()
    Image.fromarray(values).save(buffer, "PNG", transparency=1000)
    assert pixels(buffer.getvalue())[0, :, 0].tolist() == [255, round(40000 / 257)]


def test_transparency_is_laid_on_white() -> None:
    image = Image.new("RGBA", (3, 1), (200, 0, 100, 255))
    image.putpixel((1, 0), (200, 0, 100, 0))
    image.putpixel((2, 0), (0, 0, 0, 51))
    assert pixels(encoded(image))[0].tolist() == [[200, 0, 100], [255, 255, 255], [204, 204, 204]]


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    buffer = BytesIO()
    image.save(buffer, "PNG", transparency=0)
    assert pixels(buffer.getvalue())[0].tolist() == [[255, 255, 255], [40, 50, 60]]


@pytest.mark.parametrize("mode", ["1", "LA", "CMYK"])
def test_other_modes_are_what_they_look_like(mode: str) -> None:
    image = Image.new("L", (2, 2), 255).convert(mode)
    assert (pixels(encoded(image, "TIFF")) == 255).all()


def two_samples_tiff(pixels: list[tuple[int, int]], second: int) -> bytes:
    """One row of grey and a ``second`` sample (1: the opacity that grey was multiplied by; 2: opacity; 0: anything else)."""
    rows = bytes(value for pixel in pixels for value in pixel)
    tags = {256: len(pixels), 257: 1, 258: 8 | 8 << 16, 259: 1, 262: 1, 277: 2, 278: 1, 279: len(rows), 338: second}
    start = 10 + 12 * (len(tags) + 1) + 4
    entries = b"".join(
        # Two numbers of 16 bits, or one of 32.
        struct.pack("<HHII", tag, 3 if tag == 258 else 4, 2 if tag == 258 else 1, value)
        for tag, value in sorted({**tags, 273: start}.items())
    )
    return b"II*\0" + struct.pack("<IH", 8, len(tags) + 1) + entries + bytes(4) + rows


def test_grey_that_was_multiplied_by_its_opacity_is_laid_on_white_once() -> None:
    row = [(100, 255), (0, 0), (20, 51), (0, 255)]
    assert pixels(two_samples_tiff(row, second=1))[0, :, 0].tolist() == [100, 255, 20 + 204, 0]
    row = [(100, 255), (7, 0), (100, 51), (0, 255)]
    assert pixels(two_samples_tiff(row, second=2))[0, :, 0].tolist() == [100, 255, 20 + 204, 0]


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(file_format: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    buffer = BytesIO()
    options = {"lossless": True} if file_format == "WEBP" else {}
    frames[0].save(buffer, file_format, save_all=True, append_images=frames[1:], **options)
    assert (pixels(buffer.getvalue()) == np.array([255, 0, 0])).all()


def header_only(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


_WHOLE = encoded(picture(64, 64, seed=4))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", ["empty", "0 bytes"]),
        (b"GIF", ["no image", "3 bytes", "47 49 46"]),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", ["no image", "PNG, JPEG, WEBP"]),
        (_WHOLE[: len(_WHOLE) // 2], ["truncated", f"{len(_WHOLE) // 2} bytes"]),
        (_WHOLE[:60] + bytes(40) + _WHOLE[100:], ["corrupt", f"{len(_WHOLE)} bytes"]),
        (encoded(picture(64, 64), "JPEG")[:-200], ["truncated"]),
        (header_only(0, 5), ["image 2 of 3"]),
        (header_only(20000, 20000), ["too many pixels", "400000000"]),
        (header_only(10000, 10000), ["too many pixels", "100000000"]),
        (encoded(Image.new("I", (2, 2), 70000), "TIFF"), ["32-bit", "mode I"]),
        (encoded(Image.new("F", (2, 2), 0.5), "TIFF"), ["32-bit", "mode F"]),
    ],
)
def test_what_cannot_be_read_is_named(data: bytes, said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        decode_image(data, "image 2 of 3")
    assert all(part in str(caught.value) for part in [*said, "image 2 of 3"]), str(caught.value)
