"""Plays a page of the documentation: runs its Python and its commands in order, and compares what they print.

- A ``python`` block runs in the namespace of the page; functions named ``test_…`` are called. A ``text`` block that follows
  holds what it prints. A block whose first line names a file of the repository is a quotation: not run, but compared.
- A ``console`` block holds commands behind ``$`` and what each prints, on a terminal's two streams alike; ``2>/dev/null``
  leaves out the second. Known are ``outrider``, ``echo TEXT |`` before it, ``echo $?``, and ``cat FILE``, which makes a file
  that is not there yet of the lines that follow.
- ``examples/`` of the repository is there, so that pages can name its files.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from attrs import define, field, frozen
from click.testing import CliRunner

from outrider.cli import main
from tests.docs.blocks import ROOT, Block, blocks_of, matches, source_of

__all__ = ["Mismatch", "play"]

_NOTHING_SHOWN = " 2>/dev/null"


@frozen
class Mismatch:
    """A part of a page that does not tell the truth. ``start`` and ``end``: where ``expected`` lies in the page."""

    where: str
    what: str
    expected: str
    found: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n--- the page\n{self.expected}\n--- the truth\n{self.found}"


@define(eq=False)
class _Player:
    """The state of a page: names, working directory, last exit code."""

    mismatches: list[Mismatch] = field(factory=list[Mismatch])
    names: dict[str, object] = field(factory=lambda: dict[str, object]({"__name__": "__main__"}))
    printed: str | None = None
    code: int = 0

    def play(self, block: Block) -> None:
        source = source_of(block)
        if source is not None:
            self.quotation(block, source)
        elif block.language == "python":
            self.python(block)
        elif block.language == "console":
            self.console(block)
        elif block.language == "text" and self.printed is not None:
            self.compare(block.where, "printed", block.body, self.printed, block.start, block.end)
            self.printed = None

    def quotation(self, block: Block, source: Path) -> None:
        first, _, quoted = block.body.partition("\n")
        actual = source.read_text(encoding="utf-8")
        if quoted.strip("\n") not in actual:
            start = block.start + len(first) + 1
            self.mismatches.append(Mismatch(block.where, f"quotes {source.name}", quoted, actual, start, block.end))

    def python(self, block: Block) -> None:
        before = set(self.names)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.body, block.where, "exec"), self.names)
            for name in sorted(set(self.names) - before):
                if name.startswith("test_"):
                    cast("Callable[[], None]", self.names[name])()
        self.printed = out.getvalue() or None

    def console(self, block: Block) -> None:
        offset = block.start
        for part in ("\n" + block.body).split("\n$ ")[1:]:
            command, _, expected = part.partition("\n")
            start = offset + len("$ ") + len(command) + 1
            end = start + len(expected)
            offset = end + (1 if end < block.end else 0)
            if command.startswith("cat ") and not Path(command.removeprefix("cat ")).exists():
                Path(command.removeprefix("cat ")).write_text(expected.rstrip("\n") + "\n", encoding="utf-8")
                continue
            self.compare(block.where, f"$ {command}", expected, self.run(command), start, end)

    def run(self, command: str) -> str:
        """What ``command`` prints."""
        if command == "echo $?":
            return f"{self.code}\n"
        if command.startswith("cat "):
            return Path(command.removeprefix("cat ")).read_text(encoding="utf-8")
        stdin = None
        if command.startswith("echo ") and " | " in command:
            echoed, _, command = command.partition(" | ")
            stdin = " ".join(shlex.split(echoed)[1:]) + "\n"
        quiet = command.endswith(_NOTHING_SHOWN)
        program, *arguments = shlex.split(command.removesuffix(_NOTHING_SHOWN))
        if program != "outrider":
            raise ValueError(f"'{program}' is not a program that pages may call")
        result = CliRunner().invoke(main, arguments, input=stdin, prog_name="outrider", terminal_width=100)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code = result.exit_code
        return result.stdout if quiet else result.output

    def compare(self, where: str, what: str, expected: str, found: str, start: int, end: int) -> None:
        if not matches(expected, found):
            self.mismatches.append(Mismatch(where, what, expected, found, start, end))


def play(page: Path, text: str | None = None) -> Sequence[Mismatch]:
    """What is not true of ``page``; its commands run in the working directory, which should be an empty one."""
    examples = Path("examples")
    if not examples.exists():
        examples.symlink_to(ROOT / "examples")
    player = _Player()
    for block in blocks_of(page, text):
        player.play(block)
    return player.mismatches
