"""`MeasuredImage`, `MeasuredVideo`: media of a prompt after they were decoded, with the tokens they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen
from PIL.Image import Image

from outrider.errors import InputError, Problems
from outrider.interfaces import VideoFrames
from outrider_adapters.media.decode import decode_image
from outrider_adapters.media.encoder import ImageEncoder, VideoEncoder
from outrider_adapters.media.placement import Grid

__all__ = ["MeasuredImage", "MeasuredVideo", "measure_images", "measure_videos"]


@frozen(eq=False)
class MeasuredImage:
    """An image and the tokens it takes."""

    image: Image
    grid: Grid

    @property
    def size(self) -> str:
        """Its sides, for messages."""
        return f"{self.image.width} × {self.image.height} pixels"


@frozen(eq=False)
class MeasuredVideo:
    """A video whose frames were all decoded once and found equally large, and the tokens it takes."""

    clip: VideoFrames
    grid: Grid
    size: str
    name: str

    @property
    def seconds(self) -> float:
        """From its first frame to the end of its last."""
        return len(self.clip.frames) / self.clip.frames_per_second

    def frames(self) -> Iterator[Image]:
        """Its frames, decoded when they are asked for: all at once could take more memory than the model."""
        return (
            decode_image(data, _frame_name(number, self.clip, self.name))
            for number, data in enumerate(self.clip.frames, 1)
        )


def measure_images(encoder: ImageEncoder, files: Sequence[bytes], problems: Problems) -> list[MeasuredImage]:
    """The images of ``files`` that can be used; what is wrong with the others is added to ``problems``."""
    measured: list[MeasuredImage] = []
    for number, data in enumerate(files, 1):
        name = f"image {number} of {len(files)}"
        try:
            image = decode_image(data, name)
        except InputError as error:
            problems.add(str(error))
            continue
        try:
            measured.append(MeasuredImage(image, encoder.grid(image.width, image.height)))
        except InputError as error:
            problems.add(f"{name} ({image.width} × {image.height} pixels): {error}")
    return measured


def measure_videos(encoder: VideoEncoder, clips: Sequence[VideoFrames], problems: Problems) -> list[MeasuredVideo]:
    """The videos of ``clips`` that can be used; what is wrong with the others is added to ``problems``."""
    measured: list[MeasuredVideo] = []
    for number, clip in enumerate(clips, 1):
        name = f"video {number} of {len(clips)}"
        size = _size(clip, name, problems)
        if size is None:
            continue
        shown = f"{len(clip.frames)} × {size[0]} × {size[1]} pixels"
        try:
            grid = encoder.grid(*size, len(clip.frames), clip.frames_per_second)
        except InputError as error:
            problems.add(f"{name} ({shown}): {error}")
            continue
        measured.append(MeasuredVideo(clip, grid, shown, name))
    return measured


def _size(clip: VideoFrames, name: str, problems: Problems) -> tuple[int, int] | None:
    """Width and height of every frame; ``None`` where some cannot be read or differ, which is noted."""
    sizes: dict[int, tuple[int, int]] = {}
    for number, data in enumerate(clip.frames, 1):
        try:
            sizes[number] = decode_image(data, _frame_name(number, clip, name)).size
        except InputError as error:
            problems.add(str(error))
    if len(sizes) < len(clip.frames):
        return None
    first = sizes[1]
    other = next((number for number, size in sizes.items() if size != first), None)
    if other is None:
        return first
    width, height = sizes[other]
    problems.add(
        f"{_frame_name(other, clip, name)} has {width} × {height} pixels, frame 1 has {first[0]} × {first[1]}; scale or crop "
        "the frames of a video to one size"
    )
    return None


def _frame_name(number: int, clip: VideoFrames, name: str) -> str:
    return f"frame {number} of {len(clip.frames)} of {name}"
