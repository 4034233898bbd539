"""`RoundGraphs`: whole rounds, each shape as one graph."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.buckets import Buckets, length_bucket
from outrider.graphs.capturing import Capturer, uncapturable
from outrider.graphs.crossing import Crossing
from outrider.interfaces import AttnPlan, Break, Captured, RoundStep
from outrider.types import Phase, RefusalReason, Refused, RequestCount, RoundShape, RunOutside, StepResult

__all__ = ["RoundContext", "RoundGraphs"]

_BY = "round"

_CAPACITY = 256

_ATTEMPTS = 2
"""A capture may fail for what else happens on the device meanwhile; what fails again is the round itself."""

_Place = tuple[RoundStep, RoundShape]
"""Rounds of equal shape are the same work only where one engine runs them."""


@frozen(eq=False)
class RoundContext:
    """What the phases of a round must know while it is captured, or run directly in order to be captured next.

    ``captures``: whether operators are being captured. ``outside``: makes a `RunOutside` for the next body that is run.
    ``plans``: of all attention in the round, which must live as long as the graph.
    """

    captures: bool
    outside: Callable[[], RunOutside]
    plans: list[AttnPlan] = field(factory=list[AttnPlan])


@frozen(eq=False)
class _Warm:
    """A round that was run directly: what crosses breaks in it, where it runs, and its plans, which its capture must find."""

    crossing: Crossing
    device: torch.device
    plans: Sequence[AttnPlan]


@frozen(eq=False)
class _Graph:
    captured: Captured
    result: StepResult = field(repr=False)
    plans: Sequence[AttnPlan] = field(repr=False)


class RoundGraphs:
    """Captures a round when one of its shape comes for the second time; the first is run directly, as its warm-up.

    Requests are padded to the next bucket with idle rows, lengths to the next one. Of more than 256 graphs the least recently
    used goes, and likewise of rounds that were run once.
    """

    def __init__(self, capturer: Capturer, buckets: Buckets[RequestCount]) -> None:
        self._capturer = capturer
        self._buckets = buckets
        self._graphs: OrderedDict[_Place, _Graph] = OrderedDict()
        self._warm: OrderedDict[_Place, _Warm] = OrderedDict()
        self._failures: dict[_Place, int] = {}
        self._refused: dict[_Place, Refused] = {}
        self.context: RoundContext | None = None
        """Set while a round is captured or warmed up."""

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return _BY

    def bucket_of(self, shape: RoundShape) -> RoundShape | Refused:
        """The shape at which a round is captured, or why it is not: a function of its shape."""
        requests = self._buckets.pick(shape.requests)
        if isinstance(requests, Refused):
            return evolve(requests, by=_BY)
        return evolve(
            shape,
            requests=min(requests, shape.most_requests),
            max_length=length_bucket(shape.max_length, shape.most_length),
        )

    def serve(self, key: RoundShape, step: RoundStep) -> tuple[StepResult, bool] | Refused:
        """What the round at ``key`` gives, and whether a graph gave it; it is run directly for the first time.

        Refused where capturing it failed before, or nothing is captured on demand. Device only, but where it captures.
        """
        place = (step, key)
        if place in self._refused:
            return self._refused[place]
        graph = self._graphs.get(place)
        if graph is None:
            if not self._capturer.on_demand:
                remedy = "capture before the first request (Engine.capture), or let the runner capture on demand"
                return Refused(RefusalReason.NOT_CAPTURED, f"a round of {key}", remedy, _BY)
            warm = self._warm.pop(place, None)
            if warm is None:
                return self._run_directly(place), False
            try:
                made = self._capture(place, warm)
            except CaptureError as error:
                self._failures[place] = self._failures.get(place, 0) + 1
                if self._failures[place] < _ATTEMPTS:
                    return self._run_directly(place), False
                made = uncapturable(error, _BY)
                made = evolve(made, remedy=f"{made.remedy}; a drafter that needs them declares Drafter.runs_on_host")
            if isinstance(made, Refused):
                self._refused[place] = made
                return made
            graph = made
        self._graphs.move_to_end(place)
        graph.captured.replay()
        return graph.result, True

    def close(self) -> None:
        """Free every graph."""
        for graph in self._graphs.values():
            graph.captured.close()
        self._graphs.clear()
        self._warm.clear()
        self._failures.clear()
        self._refused.clear()

    def _run_directly(self, place: _Place) -> StepResult:
        step, key = place
        crossing = Crossing()
        context = RoundContext(False, _namer(crossing, _run_now, lambda: sys.maxsize))
        with self._within(context):
            result = step(key)
        device = result.packed.device
        medium = self._capturer.medium(device, _BY)
        if isinstance(medium, Refused):
            self._refused[place] = medium
        else:
            self._warm[place] = _Warm(crossing, device, context.plans)
            if len(self._warm) > _CAPACITY:
                self._warm.popitem(last=False)
        return result

    def _capture(self, place: _Place, warm: _Warm) -> _Graph | Refused:
        step, key = place
        results: list[StepResult] = []
        plans: list[AttnPlan] = []
        running = False

        def work(break_: Break) -> Mapping[str, Tensor]:
            outside = _namer(warm.crossing, break_, lambda: sys.maxsize if running else None)
            with self._within(RoundContext(True, outside, plans)):
                results.append(step(key))
            return _tensors(results[-1])

        warm.crossing.sealed = True
        made = self._capturer.capture(Phase.ROUND, _BY, str(key), work, {}, device=warm.device, warm=False)
        running = True
        if isinstance(made, Refused):
            return made
        graph = self._graphs[place] = _Graph(made, _rebuilt(results[-1], made.outputs), plans)
        if len(self._graphs) > _CAPACITY:
            self._graphs.popitem(last=False)[1].captured.close()
        return graph

    @contextmanager
    def _within(self, context: RoundContext) -> Generator[None]:
        self.context = context
        try:
            yield
        finally:
            self.context = None


def _run_now(eager: Callable[[], None]) -> None:
    eager()


def _namer(crossing: Crossing, break_: Break, real_rows: Callable[[], int | None]) -> Callable[[], RunOutside]:
    """Makes a `RunOutside` for one body after the other, each with names of its own."""
    numbers = count()
    return lambda: crossing.outside(f"body {next(numbers)}", break_, real_rows)


def _tensors(result: StepResult) -> dict[str, Tensor]:
    found = {"packed": result.packed}
    if result.logprobs is not None:
        found["logprobs"] = result.logprobs
    if result.top_ids is not None:
        found["top_ids"] = result.top_ids
    for row, hidden in enumerate(result.hidden or ()):
        found[f"hidden {row}"] = hidden
    return found


def _rebuilt(result: StepResult, tensors: Mapping[str, Tensor]) -> StepResult:
    """``result`` with the tensors that replays write."""
    hidden = None
    if result.hidden is not None:
        hidden = tuple(tensors[f"hidden {row}"] for row in range(len(result.hidden)))
    return StepResult(tensors["packed"], tensors.get("logprobs"), tensors.get("top_ids"), hidden)
