"""`CudaGraphs`: captured work, as one CUDA graph or as several with eager pieces between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from outrider._torch import GraphPool
from outrider.interfaces import Work

__all__ = ["CudaGraphs"]


class CudaGraphs:
    """Segments of one capture, replayed in order. What a replay computes lies in the pool's memory."""

    def __init__(self, pool: GraphPool, freed: Callable[[], None]) -> None:
        """``freed`` is called once when graphs that were captured are freed, or dropped without `close`."""
        self._pool = pool
        self._freed = freed
        self._finalizer: weakref.finalize[[], CudaGraphs] | None = None
        self._work: Work | None = None
        self._segments: list[tuple[torch.cuda.CUDAGraph, Callable[[], None] | None]] = []
        self._outputs: Mapping[str, Tensor] = {}
        self.nbytes: int = 0
        """Memory of the device that capturing it took."""

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """What the work returned."""
        return self._outputs

    def record(self, work: Work) -> None:
        """Capture ``work`` on the current stream. Nothing is executed.

        Raises:
            RuntimeError: it cannot be captured.
        """
        graph = self._begin()

        def break_(eager: Callable[[], None]) -> None:
            nonlocal graph
            graph.capture_end()
            self._segments.append((graph, eager))
            graph = self._begin()

        try:
            self._outputs = work(break_)
            graph.capture_end()
        except BaseException:
            self._pool.abandon(graph)
            raise
        self._segments.append((graph, None))
        self._work = work  # a graph keeps nothing alive that it reads or writes: plans, buffers, weights
        self._finalizer = weakref.finalize(self, self._freed)

    def replay(self) -> None:
        """Launch the segments on the current stream, and run what stands between them."""
        for graph, eager in self._segments:
            graph.replay()
            if eager is not None:
                eager()

    def close(self) -> None:
        """Free the graphs; their memory goes back to the pool."""
        for graph, _ in self._segments:
            graph.reset()
        self._segments.clear()
        self._outputs = {}
        self._work = None
        if self._finalizer is not None:
            self._finalizer()  # calls it the first time only

    def _begin(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self._pool.begin(graph)
        return graph
