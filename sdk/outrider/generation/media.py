"""`Video` and `ImageLike`: the media of a prompt as a user gives them, and what a provider is given of their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import field, frozen

from outrider.errors import InputError, Problems
from outrider.generation.files import read_image, shown_path
from outrider.interfaces import VideoFrames
from outrider.types.counts import counted

__all__ = ["ImageLike", "MediaFiles", "Video", "given", "read_media", "several_images", "several_videos", "shown"]

ImageLike = str | Path | bytes
"""An image: the path of its file, or the file's bytes."""


def several_images(images: ImageLike | Iterable[ImageLike]) -> tuple[ImageLike, ...]:
    """``images``, one alone counting as a list of one.

    Raises:
        InputError: it is neither.
    """
    if isinstance(images, (str, Path, bytes)):
        return (images,)
    try:
        return tuple(images)
    except TypeError as error:
        raise InputError(f"images is {images!r:.60}; give a list of paths of image files, or of their bytes") from error


@frozen
class Video:
    """A video as the images that are shown of it: files or their bytes, in order, ``frames_per_second`` of them a second.

    Nothing samples them: every frame given is a frame seen. They must be equally large. What cannot be right (no frame, a
    rate of 0) fails the prompt, not the value.
    """

    frames: tuple[ImageLike, ...] = field(converter=several_images)
    frames_per_second: float


def several_videos(videos: Video | Iterable[Video]) -> tuple[Video, ...]:
    """``videos``, one alone counting as a list of one.

    Raises:
        InputError: it is neither.
    """
    if isinstance(videos, Video):
        return (videos,)
    try:
        found = tuple(videos)
    except TypeError as error:
        raise InputError(f"videos is {videos!r:.60}; give a list of Video(frames, frames_per_second)") from error
    for number, video in enumerate(found, 1):
        if not isinstance(video, Video):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InputError(
                f"video {number} of {len(found)} is {video!r:.60}; give Video(frames, frames_per_second): video files are not "
                "read, since which frames to take of one is yours to say"
            )
    return found


@frozen
class MediaFiles:
    """The bytes of a prompt's images, and its videos as providers take them."""

    images: tuple[bytes, ...] = ()
    videos: tuple[VideoFrames, ...] = ()


def read_media(images: Sequence[ImageLike], videos: Sequence[Video]) -> MediaFiles:
    """What the files of ``images`` and ``videos`` hold.

    Raises:
        InputError: files that cannot be read, videos without frames or without a rate; all faults at once.
    """
    files: list[bytes] = []
    clips: list[VideoFrames] = []
    kinds = " and ".join(kind for kind, some in (("images", images), ("videos", videos)) if some)
    with Problems(f"its {kinds} cannot be read", InputError) as problems:
        for number, image in enumerate(images, 1):
            files.append(_read(image, f"image {number} of {len(images)}", problems))
        for number, video in enumerate(videos, 1):
            name, count = f"video {number} of {len(videos)}", len(video.frames)
            frames = [
                _read(frame, f"frame {place} of {count} of {name}", problems)
                for place, frame in enumerate(video.frames, 1)
            ]
            try:
                clips.append(VideoFrames(tuple(frames), video.frames_per_second))
            except InputError as error:
                problems.add(f"{name}: {error}")
    return MediaFiles(tuple(files), tuple(clips))


def given(num_images: int, num_videos: int, *, past: bool = False) -> str:
    """``1 image is given``, ``2 images and 1 video were given``."""
    parts = [counted(number, kind) for number, kind in ((num_images, "image"), (num_videos, "video")) if number]
    verbs = ("was", "were") if past else ("is", "are")
    return f"{' and '.join(parts)} {verbs[num_images + num_videos != 1]} given"


def shown(images: Sequence[ImageLike], videos: Sequence[Video]) -> str:
    """Which media a prompt has, for errors: paths, or sizes in bytes; empty where there are none."""
    parts: list[str] = []
    if images:
        parts.append(f"images {', '.join(map(_shown, images))}")
    if videos:
        parts.append(f"videos {', '.join(map(_shown_video, videos))}")
    return "; ".join(parts)


def _read(image: ImageLike, name: str, problems: Problems) -> bytes:
    """The file's bytes; none where what is wrong with it was noted."""
    try:
        return image if isinstance(image, bytes) else read_image(image)
    except InputError as error:
        problems.add(f"{name}, {error}")
        return b""


def _shown(image: ImageLike) -> str:
    return f"of {len(image)} bytes" if isinstance(image, bytes) else shown_path(image)


def _shown_video(video: Video) -> str:
    named = [shown_path(frame) for frame in video.frames if not isinstance(frame, bytes)]
    paths = f" {named[0]}" + (f" to {named[-1]}" if len(named) > 1 else "") if named else ""
    return f"of {counted(len(video.frames), 'frame')}{paths}"
