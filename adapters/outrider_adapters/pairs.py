"""Pairs of a target and its drafts that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from outrider.interfaces import ModelPair

__all__ = ["tiny", "tiny_llava"]

# The package is always installed as plain files (its weights are memory-mapped), so the resource is a path.
_DATA = Path(str(files("outrider_adapters"))) / "data"


def tiny() -> ModelPair:
    """The small trained pair: a 7M-parameter Llama with an EAGLE-3 draft (the default) and an EAGLE-1 draft."""
    return ModelPair(_DATA / "tiny-llama", (_DATA / "tiny-eagle3", _DATA / "tiny-eagle"))


def tiny_llava() -> ModelPair:
    """The small trained pair that reads handwritten digits: a 1.3M-parameter LLaVA with an EAGLE-3 draft."""
    return ModelPair(_DATA / "tiny-llava", (_DATA / "tiny-llava-eagle3",))
