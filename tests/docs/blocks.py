"""Fenced blocks of the documentation: found, compared with a wildcard, put back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

__all__ = ["PAGES", "ROOT", "Block", "blocks_of", "matches", "source_of"]

ROOT = Path(__file__).resolve().parent.parent.parent

# The benchmarks are written by a program, from what it has measured.
PAGES: Sequence[Path] = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "benchmarks.md"),
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r"# ((?:sdk|backends|adapters|examples|tests)/\S+\.py)\n")


@frozen
class Block:
    """One fenced block. ``start`` and ``end``: where its ``body`` lies in the text of the page."""

    page: Path
    language: str
    body: str
    line: int
    start: int
    end: int

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path, text: str | None = None) -> Iterator[Block]:
    """The blocks of ``page`` in order; ``text`` instead of the file's content."""
    text = page.read_text(encoding="utf-8") if text is None else text
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, match[1], match[2], line, match.start(2), match.end(2))


def source_of(block: Block) -> Path | None:
    """The file that a block quotes: its first line is a comment that names the path."""
    match = _SOURCE.match(block.body)
    return None if block.language != "python" or match is None else ROOT / match[1]


def matches(expected: str, found: str) -> bool:
    """Whether ``found`` is ``expected``, in which … stands for the rest or a part of a line, alone on a line for any lines.

    Spaces at the end of lines and empty lines at the end do not count.
    """
    pattern = ""
    for line in _lines(expected):
        pattern += r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(found))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
