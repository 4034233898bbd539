"""Reading prompts and writing results as JSON Lines."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, cast

from attrs import evolve, frozen

from outrider.cli.terminal import read_stdin, write_out
from outrider.errors import InputError, OutputError
from outrider.generation.completion import Completion
from outrider.generation.fields import names_with_flags
from outrider.generation.model import Prompt, Video
from outrider.generation.settings import RequestSettings
from outrider.text.unicode import check_text

__all__ = ["InputLine", "ResultFile", "check_lines", "read_lines", "result", "source_name"]

_MOST_SHOWN = 10
_A_VIDEO = '{"frames": [paths], "fps": number}'


@frozen
class InputLine:
    """One line that is not blank: ``index`` counts those from 0, ``number`` all lines of the file from 1.

    Either the ``prompt`` or, for a malformed line, the ``error`` is set.
    """

    index: int
    number: int
    prompt: Prompt | None = None
    error: InputError | None = None


def read_lines(source: str, settings: RequestSettings) -> list[InputLine]:
    """Every line of the file ``source`` (``-``: standard input); ``settings`` hold where a line has none of its own.

    Paths of images and frames are relative to the file's folder (of standard input: to the working directory); nothing is
    read there.

    Raises:
        InputError: the file cannot be read. Malformed lines carry their error instead, see `check_lines`.
    """
    try:
        content = read_stdin() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"input {source} cannot be read: {error.strerror}; give a file of JSON lines") from error
    lines: list[InputLine] = []
    # Paths of images are written by whoever wrote the file, so they start where it lies.
    folder = Path() if source == "-" else Path(source).parent
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            prompt = evolve(_prompt(raw, settings, folder), name=f"prompt {len(lines)}")
            line = InputLine(len(lines), number, prompt=prompt)
        except InputError as error:
            line = InputLine(len(lines), number, error=InputError(f"{source_name(source)}: line {number}: {error}"))
        lines.append(line)
    return lines


def source_name(source: str) -> str:
    """What messages call the file ``source``."""
    return "standard input" if source == "-" else source


def check_lines(lines: Sequence[InputLine]) -> None:
    """Refuse malformed lines.

    Raises:
        InputError: names the file, the lines and what is wrong with each.
    """
    errors = [line.error for line in lines if line.error is not None]
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    shown = "".join(f"\n  - {error}" for error in errors[:_MOST_SHOWN])
    rest = f"\n  - and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
    raise InputError(
        f"{len(errors)} malformed lines; mend them, or run the others with --keep-going{shown}{rest}"
    ) from errors[0]


def _prompt(raw: bytes, base: RequestSettings, folder: Path) -> Prompt:
    fields = _object(raw)
    own = ("prompt", "token_ids", "images", "videos")
    known = (*own, *names_with_flags(RequestSettings))
    unknown = sorted(set(fields) - set(known))
    if unknown:
        allowed = ", ".join(known)
        raise InputError(f"unknown keys {', '.join(map(repr, unknown))}; allowed are {allowed}")
    if ("prompt" in fields) == ("token_ids" in fields):
        found = "both" if "prompt" in fields else "neither"
        raise InputError(f"either 'prompt' or 'token_ids' is needed, found {found}")
    content = _text(fields["prompt"]) if "prompt" in fields else _token_ids(fields["token_ids"])
    images = _paths("'images'", fields["images"], folder) if "images" in fields else ()
    videos = _videos(fields["videos"], folder) if "videos" in fields else ()
    overrides = {name: value for name, value in fields.items() if name not in own}
    if not overrides:
        return Prompt(content, images=images, videos=videos)
    settings = base.override(overrides)
    settings.check()
    return Prompt(content, settings, images, videos=videos)


def _object(raw: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(raw.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start} of the line") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"not JSON that can be read: {error}") from error
    except RecursionError as error:
        raise InputError("not JSON that can be read: nested too deeply") from error
    if not isinstance(value, dict):
        raise InputError(f'expected a JSON object such as {{"prompt": "..."}}, found {_shown(value)}')
    return cast("Mapping[str, object]", value)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        raise InputError(f"keys {', '.join(map(repr, repeated))} occur more than once")
    return fields


def _no_constant(name: str) -> object:
    raise InputError(f"{name} is not JSON; give a number")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"'prompt' is {_shown(value)}, expected a string")
    problem = check_text(value)
    if problem is not None:
        raise InputError(f"'prompt': {problem}")
    return value


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InputError(f"'token_ids' is {_shown(value)}, expected a list of whole numbers")
    ids: list[int] = []
    for place, item in enumerate(cast("list[object]", value)):
        if not isinstance(item, int) or isinstance(item, bool):
            raise InputError(f"'token_ids'[{place}] is {_shown(item)}, expected a whole number")
        ids.append(item)
    return tuple(ids)


def _paths(name: str, value: object, folder: Path) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {_shown(value)}, expected a list of paths")
    paths: list[Path] = []
    for place, item in enumerate(cast("list[object]", value)):
        if not isinstance(item, str) or not item:
            raise InputError(f"{name}[{place}] is {_shown(item)}, expected the path of an image file")
        paths.append(folder / item)
    return tuple(paths)


def _videos(value: object, folder: Path) -> tuple[Video, ...]:
    if not isinstance(value, list):
        raise InputError(f"'videos' is {_shown(value)}, expected a list of {_A_VIDEO}")
    videos: list[Video] = []
    for place, item in enumerate(cast("list[object]", value)):
        name = f"'videos'[{place}]"
        fields = _fields(item)
        if set(fields) != {"frames", "fps"}:
            raise InputError(f"{name} is {_shown(item)}, expected {_A_VIDEO}")
        fps = fields["fps"]
        if not isinstance(fps, (int, float)) or isinstance(fps, bool) or not 0 < fps < math.inf:
            raise InputError(f"{name}['fps'] is {_shown(fps)}, expected a number above 0")
        frames = _paths(f"{name}['frames']", fields["frames"], folder)
        if not frames:
            raise InputError(f"{name}['frames'] is [], expected at least one path")
        videos.append(Video(frames, fps))
    return tuple(videos)


def _fields(value: object) -> Mapping[str, object]:
    """Those of an object; of anything else none."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def result(index: int, completion: Completion, with_logprobs: bool = False) -> dict[str, object]:
    """The output line of one prompt; ``accept_lengths`` has an entry a round, bonus included, uncut."""
    line: dict[str, object] = {
        "index": index,
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "accept_lengths": list(completion.accept_lengths),
    }
    if with_logprobs:
        line["logprobs"] = [
            {"logprob": each.chosen, "top": [[token, value] for token, value in each.top]}
            for each in completion.logprobs
        ]
    if completion.error is not None:
        line["error"] = str(completion.error)
    return line


class ResultFile:
    """Result lines in the order of their index, each written and flushed as soon as those before it are."""

    def __init__(self, path: str) -> None:
        """Open the file ``path`` (``-``: standard output); what it holds stands until `start`.

        Raises:
            OutputError: it cannot be opened for writing.
        """
        self._path = path
        self._file: TextIO | None = None
        self._held: dict[int, Mapping[str, object]] = {}
        self._next = 0
        self._failed = False
        if path != "-":
            try:
                self._file = open(path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by `close`)
            except OSError as error:
                raise OutputError(
                    f"output {path} cannot be opened: {error.strerror}; give a file that can be written"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Empty the file, now that results will come: a call that fails before that leaves earlier results alone.

        Raises:
            OutputError: it cannot be written.
        """
        if self._file is None or not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return
        try:
            self._file.truncate(0)
        except OSError as error:
            self._failed = True
            raise self._unwritable(error) from error

    def add(self, index: int, line: Mapping[str, object]) -> None:
        """Write ``line`` when all before ``index`` are written; until then hold it.

        Raises:
            OutputError: it cannot be written.
        """
        self._held[index] = line
        while self._next in self._held:
            self._write(self._held.pop(self._next))
            self._next += 1

    def release(self) -> None:
        """Write what is still held because results before it are missing, in order.

        Raises:
            OutputError: it cannot be written.
        """
        for index in sorted(self._held):
            self._write(self._held.pop(index))

    def close(self) -> None:
        """Close the file. May be called twice.

        Raises:
            OutputError: what was written does not fit, and no write has said so.
        """
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            if not self._failed:
                raise self._unwritable(error) from error

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is None:
            # Escapes keep the line whole in a terminal of any encoding; readers of JSON see the same text.
            write_out(json.dumps(line, ensure_ascii=not sys.stdout.encoding.lower().startswith("utf")) + "\n")
            return
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            self._failed = True
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(f"output {self._path} cannot be written: {error.strerror}; the lines before stand")
