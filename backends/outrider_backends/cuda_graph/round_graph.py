"""`RoundGraph`: one whole round as a CUDA graph."""

from __future__ import annotations

import torch

from outrider.interfaces import RoundStep
from outrider.types import StepResult

__all__ = ["GraphPool", "RoundGraph"]


class GraphPool:
    """Memory that several graphs share; they must not be replayed at the same time."""

    def __init__(self) -> None:
        self._handle = torch.cuda.graph_pool_handle()

    def capture(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        """The context in which work is captured into ``graph``. Work of other threads on the card goes on meanwhile."""
        return torch.cuda.graph(graph, pool=self._handle, capture_error_mode="thread_local")


class RoundGraph:
    """A captured round: draft steps, verification, acceptance, commit and extension.

    Its result lies in memory of the graph and is overwritten by the next replay. Capturing executes nothing, so the state
    of the engine is as before.
    """

    def __init__(self, step: RoundStep, max_length: int, pool: GraphPool) -> None:
        """Capture ``step(max_length)`` into the memory ``pool``; it must have been run before, as a warm-up.

        Raises:
            RuntimeError: the round cannot be captured (a host read, an operator that capture forbids).
            OutOfMemoryError: the pool cannot grow.
        """
        self._graph = torch.cuda.CUDAGraph()
        with pool.capture(self._graph):
            self.result: StepResult = step(max_length)

    def replay(self) -> StepResult:
        """Run the round again on the present state; no host work but the launch."""
        self._graph.replay()
        return self.result

    def close(self) -> None:
        """Free the graph."""
        self._graph.reset()
