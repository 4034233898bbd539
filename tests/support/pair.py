"""The trained pair that comes with the package, in float32, loaded once per process."""

from __future__ import annotations

from functools import cache

import torch
from attrs import frozen

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.interfaces import BoundDraft, LoadOptions, Target
from tests.support.toy_target import CPU

__all__ = ["TrainedPair", "trained_pair"]


@frozen(eq=False)
class TrainedPair:
    """A target and its bound drafts."""

    target: Target
    eagle3: BoundDraft
    eagle1: BoundDraft


@cache
def trained_pair() -> TrainedPair:
    """The pair; its parts are shared by all tests of a process and hold no state."""
    options = LoadOptions(CPU, torch.float32)
    pair = registry.pair("tiny")
    target = registry.load_target(Checkpoint(pair.target), options)
    eagle3, eagle1 = (registry.load_draft(Checkpoint(draft), options).bind(target) for draft in pair.drafts)
    return TrainedPair(target, eagle3, eagle1)
