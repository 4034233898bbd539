"""`RoundGraphs`: whole rounds, each shape as one graph."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import count

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs.buckets import Buckets, length_bucket
from outrider.graphs.capturing import Capturer, uncapturable
from outrider.graphs.crossing import Crossing
from outrider.interfaces import Break, Captured, RoundStep
from outrider.types import Phase, Refused, RequestCount, RoundShape, RunOutside, StepResult

__all__ = ["RoundContext", "RoundGraphs"]

_BY = "round"

_CAPACITY = 256

_ATTEMPTS = 2
"""A capture fails once where an attention plan was dropped since the warm-up; what fails again is the round itself."""


@frozen(eq=False)
class RoundContext:
    """What the phases of a round must know while it is captured, or run directly in order to be captured next.

    ``captures``: whether operators are being captured. ``outside``: makes a `RunOutside` for the next body that is run.
    """

    captures: bool
    outside: Callable[[], RunOutside]


@frozen(eq=False)
class _Warm:
    """A round that was run directly: what crosses breaks in it, and where it runs."""

    crossing: Crossing
    device: torch.device


@frozen(eq=False)
class _Graph:
    captured: Captured
    result: StepResult = field(repr=False)


class RoundGraphs:
    """Captures a round when one of its shape comes for the second time; the first is run directly, as its warm-up.

    Requests are padded to the next bucket with idle rows, lengths to the next one. Of more than 256 graphs the least recently
    used goes.
    """

    def __init__(self, capturer: Capturer, buckets: Buckets[RequestCount]) -> None:
        self._capturer = capturer
        self._buckets = buckets
        self._graphs: OrderedDict[RoundShape, _Graph] = OrderedDict()
        self._warm: dict[RoundShape, _Warm] = {}
        self._failures: dict[RoundShape, int] = {}
        self._refused: dict[RoundShape, Refused] = {}
        self.context: RoundContext | None = None
        """Set while a round is captured or warmed up."""

    @property
    def by(self) -> str:
        """What refuses, in reports."""
        return _BY

    def bucket_of(self, shape: RoundShape) -> RoundShape | Refused:
        """The shape at which a round is captured, or why it is not: a function of its shape and of earlier failures."""
        requests = self._buckets.pick(shape.requests)
        if isinstance(requests, Refused):
            return evolve(requests, by=_BY)
        key = evolve(
            shape,
            requests=min(requests, shape.most_requests),
            max_length=length_bucket(shape.max_length, shape.most_length),
        )
        return self._refused.get(key, key)

    def serve(self, key: RoundShape, step: RoundStep) -> tuple[StepResult, bool] | Refused:
        """What the round at ``key`` gives, and whether a graph gave it; it is run directly for the first time.

        Device only, but where it captures.
        """
        graph = self._graphs.get(key)
        if graph is None:
            warm = self._warm.pop(key, None)
            if warm is None:
                return self._run_directly(key, step), False
            try:
                made = self._capture(key, step, warm)
            except CaptureError as error:
                self._failures[key] = self._failures.get(key, 0) + 1
                if self._failures[key] < _ATTEMPTS:
                    return self._run_directly(key, step), False
                made = uncapturable(error, _BY)
            if isinstance(made, Refused):
                self._refused[key] = made
                return made
            graph = made
        self._graphs.move_to_end(key)
        graph.captured.replay()
        return graph.result, True

    def close(self) -> None:
        """Free every graph."""
        for graph in self._graphs.values():
            graph.captured.close()
        self._graphs.clear()
        self._warm.clear()

    def _run_directly(self, key: RoundShape, step: RoundStep) -> StepResult:
        crossing = Crossing()
        with self._within(RoundContext(False, _namer(crossing, _run_now, lambda: sys.maxsize))):
            result = step(key)
        device = result.packed.device
        medium = self._capturer.medium(device, _BY)
        if isinstance(medium, Refused):
            self._refused[key] = medium
        else:
            self._warm[key] = _Warm(crossing, device)
        return result

    def _capture(self, key: RoundShape, step: RoundStep, warm: _Warm) -> _Graph | Refused:
        results: list[StepResult] = []
        running = False

        def work(break_: Break) -> Mapping[str, Tensor]:
            outside = _namer(warm.crossing, break_, lambda: sys.maxsize if running else None)
            with self._within(RoundContext(True, outside)):
                results.append(step(key))
            return _tensors(results[-1])

        warm.crossing.sealed = True
        made = self._capturer.capture(Phase.ROUND, _BY, str(key), work, {}, device=warm.device, warm=False)
        running = True
        if isinstance(made, Refused):
            return made
        graph = self._graphs[key] = _Graph(made, _rebuilt(results[-1], made.outputs))
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
