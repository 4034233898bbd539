"""`read_image`: the bytes of an image file that a user names, whatever it turns out to be."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from outrider.errors import InputError

__all__ = ["MOST_BYTES", "read_image", "shown_path"]

MOST_BYTES = 1 << 30
"""Of a file; no image that is decoded needs as many."""
_MOST_SHOWN = 300
_URL = re.compile(r"(^|/)((https?|ftp|s3|gs|hf|file):/|data:)", re.IGNORECASE)
"""Behind a folder, too: lines of a file name their images from where it lies."""
_KINDS = (
    (stat.S_ISDIR, "Is a directory"),
    (stat.S_ISFIFO, "it is a pipe, which may never end"),
    (stat.S_ISCHR, "it is a device, which may never end"),
    (stat.S_ISBLK, "it is a device"),
)


def read_image(path: object) -> bytes:
    """What the file at ``path`` holds; ``~`` is the user's home. Never waits for a pipe, never reads a device.

    Raises:
        InputError: it is no path, or names no plain file of at most `MOST_BYTES` that can be read; begins with the path.
    """
    if not isinstance(path, (str, Path)):
        raise InputError(f"{path!r:.60}: it is neither a path nor bytes; give the path of an image file, or its bytes")
    name = repr(_shortened(str(path)))
    try:
        file = Path(path).expanduser()
        found = file.stat()
        for is_kind, said in _KINDS:
            if is_kind(found.st_mode):
                raise InputError(f"{name}: {said}; give the path of an image file")
        if found.st_size > MOST_BYTES:
            raise InputError(
                f"{name}: it has {found.st_size} bytes, at most {MOST_BYTES} are read; scale the image down"
            )
        return file.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # missing, not allowed, a NUL in it, no such user
        if _URL.search(str(path)):
            raise InputError(f"{name}: URLs are not fetched; download the file and give its path") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: {reason}; give the path of an image file") from error


def shown_path(path: object) -> str:
    """``path`` in one line that any output can hold, quoted only where characters of it cannot be shown."""
    text = _shortened(str(path))
    return text if text.isprintable() else repr(text)


def _shortened(text: str) -> str:
    """A long ``text``, such as an image inlined in a URL, without its middle."""
    half = _MOST_SHOWN // 2
    return text if len(text) <= _MOST_SHOWN else f"{text[:half]}…{text[-half:]}"
