"""`CudaGraphRunner`: rounds are replayed as one CUDA graph each; everything else runs directly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import CaptureError, ClosedError
from outrider.interfaces import AttnPlanner, GraphBody, RoundStep
from outrider.types import (
    AttnBatch,
    DispatchReport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RoundShape,
    StepResult,
)
from outrider_backends.cuda_graph.round_graph import GraphPool, RoundGraph

__all__ = ["CudaGraphRunner", "create"]

_SHORTEST = 128
"""Lengths are rounded up to this, then to powers of two: few graphs, and at most twice the attention of the real length."""

_CAPACITY = 64


class CudaGraphRunner:
    """Captures a round when one of its shape is run for the second time; the first run is its warm-up.

    All graphs share one memory pool. What cannot be captured is run directly and counted with its reason: a device without
    graphs, a body with host code in it, memory that does not suffice. Of more than 64 graphs the least recently used goes.
    Phases outside of rounds (prompts) run directly.
    """

    def __init__(self) -> None:
        self._report = DispatchReport(runner="cuda-graph")
        self._graphs: OrderedDict[RoundShape, RoundGraph] = OrderedDict()
        self._warm: set[RoundShape] = set()
        self._refused: dict[RoundShape, Refused] = {}
        self._pool: GraphPool | None = None
        self._capturing = False
        self._closed = False

    @property
    def report(self) -> DispatchReport:
        """What ran where ("cuda graph" or "eager") and what was refused why; live."""
        return self._report

    def capture(
        self,
        phase: Phase,
        body: GraphBody,  # noqa: ARG002
        shapes: Sequence[PhaseShape],
        planner: AttnPlanner,  # noqa: ARG002
    ) -> tuple[PhaseShape, ...]:
        """Nothing: phases are captured as parts of their rounds. Each shape is counted as refused.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open(f"capture {phase.value}")
        for shape in shapes:
            self._report.count_refusal(phase, self.admit(phase, shape))
        return ()

    def admit(self, phase: Phase, shape: PhaseShape) -> Refused:
        """Always refused: a phase is served by the graph of its round, never alone."""
        numbers = f"{phase.value} of {shape.tokens} tokens, {shape.requests} requests"
        if self._closed:
            return Refused(RefusalReason.CLOSED, numbers, "build a new runner")
        return Refused(RefusalReason.NOT_CAPTURED, numbers, "nothing need be done: rounds are captured whole")

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body``, run directly: as part of a round that is being captured, or outside of any.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open(f"run {phase.value}")
        if not self._capturing:
            self._report.ran[phase, "eager"] += 1
        return body(inputs, planner.plan(batch).attend)

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        """The round, replayed where a graph of its shape exists; valid until the next round.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("run a round")
        key = evolve(shape, max_length=_bucket(shape.max_length))
        graph = self._graphs.get(key)
        if graph is None and key in self._warm and key not in self._refused:
            graph = self._capture(key, step)
        if graph is not None:
            self._graphs.move_to_end(key)
            self._report.ran[Phase.ROUND, "cuda graph"] += 1
            return graph.replay()
        refused = self._refused.get(key)
        if refused is not None:
            self._report.count_refusal(Phase.ROUND, refused)
        result = step(key.max_length)
        self._report.ran[Phase.ROUND, "eager"] += 1
        self._warm.add(key)
        if result.packed.device.type != "cuda":
            numbers = f"the engine runs on {result.packed.device}"
            self._refused[key] = Refused(RefusalReason.DEVICE, numbers, "choose the eager runner, or a CUDA device")
        return result

    def close(self) -> None:
        """Free every graph; a later `run` or `run_round` raises `ClosedError`. May be called twice."""
        self._closed = True
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def _capture(self, key: RoundShape, step: RoundStep) -> RoundGraph | None:
        """The graph of ``key``; ``None`` where it cannot be had, which is noted."""
        if self._pool is None:
            self._pool = GraphPool()
        self._capturing = True
        try:
            graph = RoundGraph(step, key.max_length, self._pool)
        except CaptureError:
            # A plan was dropped since the warm-up: run directly once more, then try again.
            self._warm.discard(key)
            return None
        except torch.OutOfMemoryError as error:
            remedy = "give the KV cache less memory (num_pages), or run smaller batches"
            self._refused[key] = Refused(RefusalReason.MEMORY, str(error), remedy)
            return None
        except RuntimeError as error:
            remedy = "find the host read in the drafter, draft or target that is named, with outrider.conformance"
            self._refused[key] = Refused(RefusalReason.BODY, str(error), remedy)
            return None
        finally:
            self._capturing = False
        self._graphs[key] = graph
        if len(self._graphs) > _CAPACITY:
            self._graphs.popitem(last=False)[1].close()
        return graph

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise ClosedError(f"cannot {verb}: the CUDA graph runner was closed; build a new one")


def _bucket(max_length: int) -> int:
    return max(_SHORTEST, 1 << (max_length - 1).bit_length())


def create() -> CudaGraphRunner:
    """A new CUDA graph runner (entry point ``outrider.runners``)."""
    return CudaGraphRunner()
