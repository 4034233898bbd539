"""`TapeRunner`: serves phases by replaying tapes, on any machine, as a CUDA-graph runner does on a GPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import CaptureError, ClosedError
from outrider.graphs import Buckets, request_buckets
from outrider.interfaces import AttnPlanner, GraphBody, RoundStep
from outrider.types import (
    Admitted,
    AttnBatch,
    CaptureSupport,
    DispatchReport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    RoundShape,
    StepResult,
    TokenCount,
)
from outrider_backends.tape.graph import TapeGraph
from outrider_backends.tape.pool import TapePool

__all__ = ["TapeRunner", "create"]

_LENGTH_STEP = 64
"""A graph serves lengths up to the next multiple of this, as plans do that run directly."""

_CAPACITY = 64
"""A tape holds every intermediate value of its body, so there must not be too many."""

_Key = tuple[Phase, int, int, PhaseShape]


class TapeRunner:
    """Captures uniform phases (decode, verify, draft steps, extend) at buckets of requests, and replays them.

    A call is padded to the next bucket of requests, each with all of its queries, and to the next length; inputs, padding
    and attention go to static buffers, the tape refreshes its plan and runs, and the real rows of its outputs are handed
    out, valid until the next call of the same phase. Prompts, ragged batches and batches above the largest bucket are run
    directly and counted, as is a phase whose body cannot be captured.

    With ``on_demand`` a graph is captured when it is first needed; else only what `capture` was told is served. Of more
    than 64 graphs the least recently used goes. ``pool`` may be shared with other runners; with its ``debug`` padding rows
    hold NaN and huge numbers as well.
    """

    def __init__(
        self,
        buckets: Buckets[RequestCount] | None = None,
        *,
        on_demand: bool = True,
        pool: TapePool | None = None,
    ) -> None:
        self._buckets = request_buckets() if buckets is None else buckets
        self._on_demand = on_demand
        self._pool = TapePool() if pool is None else pool
        self._report = DispatchReport(runner="tape")
        self._graphs: OrderedDict[_Key, TapeGraph] = OrderedDict()
        self._shapes: dict[Phase, set[PhaseShape]] = {}
        self._uncapturable: dict[Phase, Refused] = {}
        self._out_of_memory: dict[tuple[Phase, PhaseShape], Refused] = {}
        self._closed = False

    @property
    def report(self) -> DispatchReport:
        """What ran where ("tape" or "eager") and what was refused why; live."""
        return self._report

    def capture(
        self, phase: Phase, body: GraphBody, shapes: Sequence[PhaseShape], planner: AttnPlanner
    ) -> tuple[PhaseShape, ...]:
        """Capture ``body`` at the bucket of each of ``shapes``; those that are served now, each once, in the order asked.

        A shape that no graph can serve is left out, and counted in the report.

        Raises:
            CaptureError: the body cannot be captured; every line that prevents it is named.
            ClosedError: the runner is closed.
        """
        self._check_open(f"capture {phase.value}")
        captured: dict[PhaseShape, None] = {}
        for shape in shapes:
            key = self._bucket_of(phase, shape)
            made = key if isinstance(key, Refused) else self._graph(phase, body, key, planner)
            if isinstance(made, Refused):
                self._report.count_refusal(phase, made)
            else:
                captured[made.key] = None
        return tuple(captured)

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a tape serves a call of ``shape``, and at which size: a function of the shape and what was captured.

        With ``on_demand`` a shape is admitted that would be captured when it is run.
        """
        if self._closed:
            return Refused(RefusalReason.CLOSED, f"{phase.value} of {_numbers(shape)}", "build a new runner")
        key = self._bucket_of(phase, shape)
        if isinstance(key, Refused):
            return key
        captured = self._shapes.get(phase, set())
        if key not in captured and not self._on_demand:
            fitting = [size for size in captured if _holds(size, shape)]
            if not fitting:
                return Refused(
                    RefusalReason.NOT_CAPTURED,
                    f"{phase.value} of {_numbers(shape)}; {len(captured)} graphs of the phase, none of that size",
                    "capture the shape before it is run, or let the runner capture on demand",
                )
            key = min(fitting, key=_cost)
        return Admitted(key, TokenCount(key.tokens - shape.tokens))

    @torch.inference_mode()
    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body``, by replay or directly; valid until the next call of the same phase.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
        """
        self._check_open(f"run {phase.value}")
        shape = PhaseShape.of(batch)
        answer = self.admit(phase, shape)
        if isinstance(answer, Admitted):
            try:
                made = self._graph(phase, body, answer.key, planner)
            except CaptureError:
                made = self._uncapturable[phase]
            if not isinstance(made, Refused):
                outputs = made.run(inputs, batch, shape, self._pool)
                self._report.ran[phase, "tape"] += 1
                return outputs
            answer = made
        self._report.count_refusal(phase, answer)
        outputs = body(inputs, planner.plan(batch).attend)
        self._report.ran[phase, "eager"] += 1
        return outputs

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        """What ``step`` gives, run directly; its phases come to `run`.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("run a round")
        return step(shape.max_length)

    def close(self) -> None:
        """Drop every graph and buffer; a later `run` or `capture` raises `ClosedError`. May be called twice."""
        self._closed = True
        for graph in self._graphs.values():
            self._pool.remove(graph.tape)
        self._graphs.clear()
        self._shapes.clear()

    def _bucket_of(self, phase: Phase, shape: PhaseShape) -> PhaseShape | Refused:
        """The size at which ``shape`` is captured, or why it is not: a function of the shape and of earlier failures."""
        if shape.attention is None:
            return Refused(
                RefusalReason.NOT_UNIFORM,
                f"{phase.value} of {_numbers(shape)}",
                "nothing need be done for prompts; else give every request equally many queries",
            )
        if phase in self._uncapturable:
            return self._uncapturable[phase]
        requests = self._buckets.pick(shape.requests)
        if isinstance(requests, Refused):
            return requests
        length = -(-shape.attention.max_length // _LENGTH_STEP) * _LENGTH_STEP
        key = PhaseShape(
            TokenCount(requests * shape.attention.queries), requests, evolve(shape.attention, max_length=length)
        )
        return self._out_of_memory.get((phase, key), key)

    def _graph(self, phase: Phase, body: GraphBody, key: PhaseShape, planner: AttnPlanner) -> TapeGraph | Refused:
        """The graph of ``key``, captured now unless it was before."""
        # A graph keeps its body and its planner alive, so their ids stay theirs.
        place = (phase, id(body), id(planner), key)
        graph = self._graphs.get(place)
        if graph is not None:
            self._graphs.move_to_end(place)
            return graph
        if planner.capabilities.capture is CaptureSupport.NONE:
            return self._give_up(
                phase,
                Refused(
                    RefusalReason.ATTENTION,
                    f"attention backend '{planner.capabilities.name}' declares no plan that can be captured",
                    "choose another attention backend, or a runner that runs attention outside of its graphs",
                ),
            )
        try:
            graph = TapeGraph(phase, body, key, planner, poison=self._pool.debug)
        except CaptureError as error:
            self._give_up(phase, Refused(RefusalReason.BODY, str(error), "correct the lines that are named"))
            raise
        except (torch.OutOfMemoryError, MemoryError) as error:
            refused = Refused(
                RefusalReason.MEMORY,
                f"{phase.value} at {_numbers(key)}: {error}",
                "capture fewer or smaller buckets, or give the KV cache less memory",
            )
            self._out_of_memory[phase, key] = refused
            return refused
        self._graphs[place] = graph
        self._shapes.setdefault(phase, set()).add(key)
        self._pool.add(graph.tape, (id(self), phase))
        if len(self._graphs) > _CAPACITY:
            self._drop_oldest()
        return graph

    def _give_up(self, phase: Phase, refused: Refused) -> Refused:
        self._uncapturable[phase] = refused
        return refused

    def _drop_oldest(self) -> None:
        (phase, _, _, key), graph = self._graphs.popitem(last=False)
        self._pool.remove(graph.tape)
        if all(place[0] is not phase or place[3] != key for place in self._graphs):
            self._shapes[phase].discard(key)

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise ClosedError(f"cannot {verb}: the tape runner was closed; build a new one")


def _holds(size: PhaseShape, shape: PhaseShape) -> bool:
    """Whether a graph of ``size`` serves ``shape``: all the same but for requests and length."""
    if size.attention is None or shape.attention is None or size.requests < shape.requests:
        return False
    longer = size.attention.max_length >= shape.attention.max_length
    return longer and evolve(shape.attention, max_length=size.attention.max_length) == size.attention


def _cost(size: PhaseShape) -> tuple[int, int]:
    return (size.tokens, 0 if size.attention is None else size.attention.max_length)


def _numbers(shape: PhaseShape) -> str:
    if shape.attention is None:
        return f"{shape.tokens} tokens, {shape.requests} requests, no equal number of queries each"
    each = shape.attention
    return (
        f"{shape.tokens} tokens, {shape.requests} requests of {each.queries} queries, up to {each.max_length} positions"
    )


def create() -> TapeRunner:
    """A new tape runner that captures on demand (entry point ``outrider.runners``)."""
    return TapeRunner()
