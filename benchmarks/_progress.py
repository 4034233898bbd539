"""What a benchmark is doing, told on stderr as it goes: a run that is cut still says where its time went."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["tell", "timed"]

_BEGAN = time.perf_counter()


def tell(text: str) -> None:
    """Print ``text`` after the seconds since this module was imported."""
    print(f"[{time.perf_counter() - _BEGAN:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Generator[None]:
    """Tell how long the block took."""
    began = time.perf_counter()
    yield
    tell(f"{what}: {time.perf_counter() - began:.1f} s")
