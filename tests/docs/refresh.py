"""Puts the present truth into the documentation: ``python -m tests.docs.refresh [PAGE...]``.

Outputs that no longer match are replaced, and with them the … they hold: look at the difference before you keep it.
Quotations are replaced where they were a whole file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from tests.docs.blocks import PAGES
from tests.docs.play import Mismatch, play
from tests.docs.tables import current

__all__ = ["refreshed"]


def refreshed(text: str, mismatches: list[Mismatch]) -> str:
    """``text`` with what was found in place of what was expected."""
    for mismatch in sorted(mismatches, key=lambda each: each.start, reverse=True):
        found = mismatch.found.rstrip() + "\n" if mismatch.found.strip() else ""
        tail = "" if text[mismatch.end - 1 : mismatch.end] == "\n" or not found else "\n"
        text = text[: mismatch.start] + (found if not tail else found.rstrip("\n")) + text[mismatch.end :]
    return text


def main() -> None:
    torch.set_num_threads(1)
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    for page in pages:
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            text = current(page.read_text(encoding="utf-8"))
            mismatches = list(play(page, text))
        page.write_text(refreshed(text, mismatches), encoding="utf-8")
        print(f"{page.name}: {len(mismatches)} outputs replaced")


if __name__ == "__main__":
    main()
