"""CUDA graphs of whole rounds, of phases, and of segments with eager attention between them."""

from __future__ import annotations

from outrider.graphs import GraphOptions, LadderRunner, RunnerOptions, Steps
from outrider_backends.cuda_graph.medium import CudaGraphMedium

__all__ = ["CudaGraphMedium", "create", "cuda_graph_runner", "shared_medium"]

_SHARED = CudaGraphMedium()


def shared_medium() -> CudaGraphMedium:
    """The one pool and stream of the process, whose runners take turns."""
    return _SHARED


def cuda_graph_runner(
    options: GraphOptions | None = None, steps: Steps | None = None, medium: CudaGraphMedium | None = None
) -> LadderRunner:
    """A runner of CUDA graphs; ``medium`` ``None`` shares memory with every other runner of the process."""
    return LadderRunner("cuda-graph", (_SHARED if medium is None else medium,), steps, options)


def create(options: RunnerOptions) -> LadderRunner:
    """A new CUDA graph runner that captures as ``options`` say (entry point ``outrider.runners``)."""
    return cuda_graph_runner(GraphOptions.of(options))
