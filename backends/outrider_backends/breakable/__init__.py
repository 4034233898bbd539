"""Breakable graphs: everything but attention is captured, and one graph serves any batch of up to its number of tokens."""

from __future__ import annotations

from outrider.graphs import GraphOptions, LadderRunner, RunnerOptions, Steps
from outrider.interfaces import GraphMedium
from outrider_backends.cuda_graph import shared_medium
from outrider_backends.tape import TapeMedium

__all__ = ["breakable_runner", "create"]


def breakable_runner(options: GraphOptions | None = None, media: tuple[GraphMedium, ...] | None = None) -> LadderRunner:
    """A runner of segments; ``media`` ``None``: CUDA graphs where the model is on a CUDA device, tapes elsewhere."""
    chosen = (shared_medium(), TapeMedium()) if media is None else media
    return LadderRunner("breakable", chosen, Steps(rounds=False, phases=False), options)


def create(options: RunnerOptions) -> LadderRunner:
    """A new breakable runner that captures as ``options`` say (entry point ``outrider.runners``)."""
    return breakable_runner(GraphOptions.of(options))
