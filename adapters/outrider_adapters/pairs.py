"""Pairs of a target and its drafts that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from outrider.interfaces import ModelPair

__all__ = ["tiny"]


def tiny() -> ModelPair:
    """The small trained pair: a 7M-parameter Llama with an EAGLE-3 draft (the default) and an EAGLE-1 draft."""
    # The package is always installed as plain files (its weights are memory-mapped), so the resource is a path.
    data = Path(str(files("outrider_adapters"))) / "data"
    return ModelPair(data / "tiny-llama", (data / "tiny-eagle3", data / "tiny-eagle"))
