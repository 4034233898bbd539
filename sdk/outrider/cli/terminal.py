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

__all__ = ["INTERRUPTED", "Interrupt", "prepare_streams", "read_prompt", "read_stdin", "write_out"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Interrupt:
    """While entered, the first Ctrl-C sets `requested`, so that a loop can end between rounds; the second one raises."""

    def __init__(self) -> None:
        self.requested: bool = False
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


def prepare_streams() -> None:
    """Make stdout and stderr replace what their encoding cannot show, instead of raising; a closed stderr is discarded.

    Raises:
        OutputError: stdout is closed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    if sys.stdout is None:
        raise OutputError("standard output is closed; redirect it, to /dev/null if nobody is to read it")
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


def read_stdin() -> bytes:
    """All of standard input.

    Raises:
        InputError: it is closed, or cannot be read.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; redirect it, or name a file")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise InputError(f"standard input cannot be read: {error.strerror}; redirect it, or name a file") from error


def read_prompt() -> str:
    """Standard input as text, without the line break at its end that shells and editors add.

    Raises:
        InputError: it is closed, cannot be read, or is not UTF-8.
    """
    try:
        text = read_stdin().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error
    return text.removesuffix("\n").removesuffix("\r")


def _silence_stdout() -> None:
    """Send what is left in the buffer nowhere, or the interpreter fails once more when it exits."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # no file underneath
        return
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), number)
