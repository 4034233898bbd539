"""The tape: CUDA-graph semantics on a CPU, so that a body can be proved capturable without a GPU."""

from __future__ import annotations

from outrider.graphs import GraphOptions, LadderRunner, RunnerOptions, Steps
from outrider_backends.tape.medium import TapeGraph, TapeMedium
from outrider_backends.tape.tape import Tape

__all__ = ["Tape", "TapeGraph", "TapeMedium", "create", "tape_runner"]


def tape_runner(
    options: GraphOptions | None = None, steps: Steps | None = None, medium: TapeMedium | None = None
) -> LadderRunner:
    """A runner of tapes; ``medium`` may be shared with other runners."""
    return LadderRunner("tape", (TapeMedium() if medium is None else medium,), steps, options)


def create(options: RunnerOptions) -> LadderRunner:
    """A new tape runner that captures as ``options`` say (entry point ``outrider.runners``)."""
    return tape_runner(GraphOptions.of(options))
