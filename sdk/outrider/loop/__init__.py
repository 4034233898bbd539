"""The decode loop."""

from __future__ import annotations

from outrider.loop.core import TargetBody

__all__ = ["TargetBody"]
