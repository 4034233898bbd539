"""Whole rounds as graphs: capturing one changes nothing, what fails leaves everything as it was, pieces run between."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count
from typing import Literal, cast

import pytest
import torch
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets
from outrider.graphs.crossing import Crossing
from outrider.interfaces import RoundStep
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import Phase, RefusalReason, RequestId, RoundShape, StepResult
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.backends.odd_stacks import OutsideStack, featured, standalone
from tests.support.drafters import HostReaderBuilder
from tests.support.engines import Outcome, drive, outcomes, run
from tests.support.media import FailingMedium
from tests.support.toy_target import CPU, ToyStack, toy_target

REQUESTS = [Request((3, 1, 4), 14), Request((1,), 9), Request((2, 7, 1, 8), 14), Request((5, 5), 12)]
OPTIONS = EngineOptions(max_batch_size=3, max_length=60, page_size=4)


class Spied(LadderRunner):
    """A ladder that lets a test in before and after each round."""

    def __init__(self, medium: TapeMedium | FailingMedium, steps: Steps | None = None) -> None:
        options = GraphOptions(requests=request_buckets([1, 3]), poison=True)
        super().__init__("spied", (medium,), steps, options)
        self.around: Callable[[RoundShape, Callable[[], StepResult]], StepResult] = lambda shape, go: go()

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        return self.around(shape, lambda: super(Spied, self).run_round(shape, step))


def chain(runner: LadderRunner | EagerRunner) -> Engine:
    target, draft = featured(ToyStack())
    return build_engine(target, ChainBuilder(draft, 3), attention=SdpaBackend(), runner=runner, options=OPTIONS)


def ids(found: list[Outcome]) -> list[tuple[list[int], list[int]]]:
    return [(outcome.token_ids, outcome.accept_lengths) for outcome in found]


def everything() -> list[Tensor]:
    """Every storage there is, as bytes: state, caches of target and draft, plans, weights, and what nobody thought of."""
    gc.collect()  # copies of an earlier comparison, in the frames of what was raised there
    found: dict[int, Tensor] = {}
    # By type: to be asked for their class, some of torch's own objects warn.
    tensors = [cast("Tensor", value) for value in gc.get_objects() if issubclass(type(value), Tensor)]
    for value in tensors:
        if value.numel() and value.layout is torch.strided and value.device == CPU:
            storage = value.untyped_storage()
            found[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
    return list(found.values())


When = Literal["before", "at a break", "after", "captured"]


@pytest.mark.parametrize("when", ["after", "captured"])
def test_capturing_a_round_changes_nothing(when: When) -> None:
    """Every storage there is, before and after a capture that was cut off at its end, or done, byte for byte."""
    compared = 0

    def fail(number: int) -> BaseException:
        return KeyboardInterrupt()

    runner = Spied(FailingMedium(fail, when), Steps(phases=False, breakable=False))
    engine = chain(runner)

    def around(shape: RoundShape, go: Callable[[], StepResult]) -> StepResult:
        nonlocal compared
        tensors = everything() if compared < 4 else []  # one for each batch size, and one more
        before = [tensor.clone() for tensor in tensors]
        try:
            return go()
        except KeyboardInterrupt:
            changed = [one for one, two in zip(tensors, before, strict=True) if not torch.equal(one, two)]
            assert not changed
            compared += 1
            return go()  # nothing was done, so it can be done again

    runner.around = around
    found = run(engine, REQUESTS)
    assert compared >= 3
    assert ids(found) == ids(run(chain(EagerRunner()), REQUESTS))


def test_the_comparison_above_sees_what_a_round_changes() -> None:
    runner = Spied(TapeMedium(debug=True))
    engine = chain(runner)
    changes: list[int] = []

    def around(shape: RoundShape, go: Callable[[], StepResult]) -> StepResult:
        if len(changes) > 3:
            return go()
        tensors = everything()
        before = [tensor.clone() for tensor in tensors]
        result = go()
        changes.append(sum(not torch.equal(one, two) for one, two in zip(tensors, before, strict=True)))
        return result

    runner.around = around
    run(engine, REQUESTS)
    assert min(changes) >= 6, "lengths, roots, tokens, keys and values of both, state of the draft"


@pytest.mark.parametrize("when", ["before", "after"])
def test_out_of_memory_in_the_middle_of_a_round(when: When) -> None:
    """That shape runs by phases from then on, others are captured as before; no token differs."""

    def fail(number: int) -> BaseException | None:
        return torch.OutOfMemoryError("no memory left on the device") if number == FIRST_ROUND else None

    runner = Spied(FailingMedium(fail, when))
    engine = chain(runner)
    found = run(engine, REQUESTS)
    assert ids(found) == ids(run(chain(EagerRunner()), REQUESTS))
    report = runner.report
    assert report.refused[Phase.ROUND, RefusalReason.MEMORY] > 0
    assert "no memory left" in report.explained[Phase.ROUND, "round", RefusalReason.MEMORY].numbers
    assert report.ran[Phase.TARGET_VERIFY, "phase"] > 0
    assert report.ran[Phase.ROUND, "round"] > 0, "of the other shapes"


FIRST_ROUND = 3
"""Before it, prompts of target and draft are captured in segments."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_round_that_is_cut_off_while_captured_can_be_run_again(error: type[BaseException], when: When) -> None:
    cut = 0

    def fail(number: int) -> BaseException | None:
        return error() if number % 2 else None

    runner = Spied(FailingMedium(fail, when), Steps(phases=False, breakable=False))
    engine = chain(runner)

    def around(shape: RoundShape, go: Callable[[], StepResult]) -> StepResult:
        nonlocal cut
        try:
            return go()
        except error:
            cut += 1
            return go()

    runner.around = around
    assert ids(run(engine, REQUESTS)) == ids(run(chain(EagerRunner()), REQUESTS))
    assert cut > 0
    assert runner.report.ran[Phase.ROUND, "round"] > 0


def test_a_round_that_cannot_be_captured_runs_by_phases() -> None:
    runner = tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True))
    target = toy_target()
    engine, plain = (
        build_engine(target, builder, attention=SdpaBackend(), runner=chosen, options=OPTIONS)
        for builder, chosen in ((HostReaderBuilder(), runner), (None, EagerRunner()))
    )
    assert ids(run(engine, REQUESTS)) == ids(run(plain, REQUESTS))
    report = runner.report
    assert report.ran[Phase.ROUND, "round"] == 0
    assert report.ran[Phase.TARGET_DECODE, "phase"] > 0
    said = report.explained[Phase.ROUND, "round", RefusalReason.BODY]
    assert "drafters.py:" in said.numbers
    assert "reads a value on the host" in said.numbers


def test_pieces_outside_of_a_whole_round() -> None:
    """Each pass of target and draft has some: all of them stand between the segments of one graph."""
    for make in (standalone, featured):
        for which in ("chain", "tree"):
            stack = OutsideStack()
            target, draft = make(stack)
            builder = ChainBuilder(draft, 3) if which == "chain" else TreeBuilder(draft, 2, 2, 4)
            runner = tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True))
            found, expected = (
                run(build_engine(target, builder, attention=SdpaBackend(), runner=chosen, options=OPTIONS), REQUESTS)
                for chosen in (runner, EagerRunner())
            )
            assert ids(found) == ids(expected)
            assert runner.report.ran[Phase.ROUND, "round"] > 0
            assert Phase.ROUND not in {phase for phase, _ in runner.report.refused}


def test_pieces_that_shared_their_buffers_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: with one buffer for all of them the last result stands where the first was."""
    whole = Crossing.buffer

    def one_for_all(crossing: Crossing, name: str, rows: int, trailing: tuple[int, ...], like: Tensor) -> Tensor:
        return whole(crossing, name if "," in name else "one for all", rows, trailing, like)

    monkeypatch.setattr(Crossing, "buffer", one_for_all)
    with pytest.raises(AssertionError):
        test_pieces_outside_of_a_whole_round()


def test_the_plans_of_a_round_are_held_until_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between warm-up and capture other plans take the place of its own."""
    monkeypatch.setattr("outrider.planning._CAPACITY", 1)
    runner = tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True))
    assert ids(run(chain(runner), REQUESTS)) == ids(run(chain(EagerRunner()), REQUESTS))
    assert runner.report.ran[Phase.ROUND, "round"] > 0
    assert Phase.ROUND not in {phase for phase, _ in runner.report.refused}


def test_idle_rows_run_along_and_change_nothing() -> None:
    """Two requests in a graph of three rows; the third joins later, on pages and in a row that idled."""
    runner = Spied(TapeMedium(debug=True))
    engine, plain = chain(runner), chain(EagerRunner())
    found: list[list[tuple[list[int], list[int]]]] = []
    for one in (engine, plain):
        done: dict[RequestId, Outcome] = {}
        chosen = [one.submit(request) for request in REQUESTS[:2]]
        for number in count():
            if not one.has_work:
                break
            if number == 4:
                chosen.append(one.submit(REQUESTS[2]))
            outcomes(one.step(), done)
        found.append(ids([done[request_id] for request_id in chosen]))
    assert found[0] == found[1]
    assert {record.size.split(",")[0] for record in runner.report.captured if record.by == "round"} == {
        "3 requests",
        "1 request",
    }


def test_rows_that_wait_for_their_prompt_do_not_run_along() -> None:
    """An embedder may run a round between admission and prefill: the new row's prompt must not be taken for a sequence."""
    runner = Spied(TapeMedium(debug=True))
    engine, plain = chain(runner), chain(EagerRunner())
    found: list[list[tuple[list[int], list[int]]]] = []
    for one in (engine, plain):
        done: dict[RequestId, Outcome] = {}
        chosen = [one.submit(request) for request in REQUESTS[:2]]
        for _ in range(3):
            outcomes(one.step(), done)
        chosen.append(one.submit(REQUESTS[2]))
        one.admit()
        for _ in range(3):
            one.run_round()
            outcomes(one.read(), done)
        drive(one, done)
        found.append(ids([done[request_id] for request_id in chosen]))
    assert found[0] == found[1]


def test_the_least_recently_used_round_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.graphs.rounds._CAPACITY", 1)
    runner = tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True))
    engine = chain(runner)
    for _ in range(2):
        assert ids(run(engine, REQUESTS)) == ids(run(chain(EagerRunner()), REQUESTS))
    rounds = [record.size for record in runner.report.captured if record.by == "round"]
    assert len(rounds) > len(set(rounds)), "captured anew when it came back"
