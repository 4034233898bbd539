"""Reports: what was measured where, as markdown on the screen and in a file."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from attrs import frozen

__all__ = ["Report", "Table", "environment"]


@frozen
class Table:
    """Rows of text under column names; the first column is flush left, the others right unless ``text_columns`` says so."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int] = frozenset({0})

    def __str__(self) -> str:
        """Markdown with aligned columns."""
        widths = [max(len(row[place]) for row in (self.columns, *self.rows)) for place in range(len(self.columns))]

        def line(cells: Sequence[str]) -> str:
            padded = [
                cell.ljust(width) if place in self.text_columns else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return f"| {' | '.join(padded)} |"

        rule = [
            "-" * (width + 2) if place in self.text_columns else "-" * (width + 1) + ":"
            for place, width in enumerate(widths)
        ]
        return "\n".join([line(self.columns), f"|{'|'.join(rule)}|", *(line(row) for row in self.rows)])


class Report:
    """Paragraphs and tables in order; each is printed as soon as it is there, and written where the report has a file."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        """``name`` names the part of a document that the report may replace; see `write`.

        ``path``: a file that is written anew whenever something comes in, so that a run that is cut leaves what it has.
        """
        self._name = name
        self._path = path
        self._parts: dict[str, str] = {}

    def add(self, part: str | Table) -> None:
        """Add and print a paragraph or a table."""
        self.put(f"part {len(self._parts)}", part)

    def put(self, key: str, part: str | Table, *, show: bool = True) -> None:
        """Add ``part``, or put it where the one with this ``key`` stood; print it unless it shall not ``show``."""
        self._parts[key] = str(part)
        if show:
            print(f"{part}\n", flush=True)
        if self._path is not None:
            self.write(self._path)

    def write(self, path: Path) -> None:
        """Write the report to ``path``, whose folder is made where it is missing.

        Where the file holds the lines ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` only what is between them is
        replaced; any other file is overwritten.
        """
        text = "\n\n".join(self._parts.values())
        begin, end = f"<!-- {self._name}:begin -->", f"<!-- {self._name}:end -->"
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if begin in old and end in old:
            before, rest = old.split(begin, 1)
            after = rest.split(end, 1)[1]
            path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
        else:
            path.write_text(text + "\n", encoding="utf-8")


def environment(device: torch.device) -> str:
    """Date, processor or card, and versions, in one paragraph."""
    facts = [datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), _processor()]
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[1]
        facts.append(f"{torch.cuda.get_device_name(device)} ({memory / 2**30:.0f} GiB, CUDA {torch.version.cuda})")
    facts.append(f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}")
    facts.append(f"Python {platform.python_version()}")
    facts.append(f"torch {torch.__version__}")
    for package in ("transformers", "triton", "vllm"):
        try:
            facts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(facts) + "."


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
