"""Standard streams and Ctrl-C, as a command needs them."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

from outrider.errors import InputError, OutputError

__all__ = ["INTERRUPTED", "Interrupt", "check_text", "forgive_encodings", "read_prompt", "write_out"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Interrupt:
    """While entered, the first Ctrl-C sets `requested`, so that a loop can end between rounds; the second one raises."""

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Self:
        # A shell starts background jobs with the signal ignored, and an embedder may have a handler: both are left alone.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame  # what the signal module hands over
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def forgive_encodings() -> None:
    """Make stdout and stderr replace what their encoding cannot show, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def write_out(text: str) -> None:
    """Write ``text`` to stdout at once.

    Raises:
        BrokenPipeError: the reader left; click ends the command quietly.
        OutputError: it cannot be written for another reason.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence_stdout()
        raise OutputError(f"standard output cannot be written: {error.strerror}; free space or redirect it") from error


def read_prompt() -> str:
    """Standard input as text, without the line break at its end that shells and editors add.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error
    return text.removesuffix("\n").removesuffix("\r")


def check_text(text: str) -> str | None:
    """Why ``text`` is not valid Unicode, in a clause; ``None`` when it is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"character {error.start} is half of a surrogate pair or a byte that is not UTF-8; give valid Unicode"
    return None


def _silence_stdout() -> None:
    """Send what is left in the buffer nowhere, or the interpreter fails once more when it exits."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # no file underneath
        return
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), number)
