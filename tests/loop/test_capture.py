"""Capturing before the first request: complete, without a trace but its graphs, and told truly."""

from __future__ import annotations

import pytest
import torch

from outrider.errors import ClosedError, GraphError
from outrider.interfaces import DrafterBuilder
from outrider.loop.engine import Engine
from outrider.types import Phase, RefusalReason, SamplingParams
from outrider_backends.eager import EagerRunner
from tests.loop.captures import (
    BUILDERS,
    PHASES,
    SAMPLED,
    SMALL,
    STEPS,
    KeptMemory,
    engine,
    outcome,
    requests,
    runner,
    tapes,
)
from tests.support.engines import drive


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", BUILDERS)
def test_no_request_captures_anything_afterwards_and_all_get_what_they_get_eagerly(name: str, steps: str) -> None:
    is_complete(engine(runner(STEPS[steps]), BUILDERS[name]), BUILDERS[name])


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ["off", "chain", "tree"])
def test_the_same_of_runners_that_capture_nothing_later(name: str, steps: str) -> None:
    is_complete(engine(runner(STEPS[steps], on_demand=False), BUILDERS[name]), BUILDERS[name])


@pytest.mark.parametrize("steps", STEPS)
def test_what_was_not_captured_is_never_captured_by_a_request(steps: str) -> None:
    made, plain = engine(runner(STEPS[steps], on_demand=False)), engine(EagerRunner())
    assert outcome(made, requests(SAMPLED)) == outcome(plain, requests(SAMPLED))
    assert not made.report.captured
    assert {where for _, where in made.report.ran} == {"eager"}
    assert {reason for _, reason in made.report.refused} <= {RefusalReason.NOT_CAPTURED, RefusalReason.NOT_UNIFORM}
    assert ((Phase.ROUND, RefusalReason.NOT_CAPTURED) in made.report.refused) is (steps == "rounds")
    made.capture()
    assert made.report.captured


def test_the_same_of_tapes() -> None:
    is_complete(engine(tapes(), options=SMALL), BUILDERS["chain"])


def is_complete(made: Engine, builder: DrafterBuilder | None) -> None:
    summary = made.capture()
    assert (summary.unserved, summary.left_out) == ((), 0)
    plain = engine(EagerRunner(), builder)
    for sampling in (SamplingParams(), SAMPLED):
        assert outcome(made, requests(sampling)) == outcome(plain, requests(sampling))
    assert made.report.captured == list(summary.captured)
    assert not [what for what in made.report.ran if what[1] == "eager"]


def test_a_length_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(most: int) -> tuple[int, ...]:
        return (most,)

    monkeypatch.setattr("outrider.loop.capture.length_buckets", one)
    with pytest.raises(AssertionError):
        is_complete(engine(runner(PHASES)), BUILDERS["chain"])


@pytest.mark.parametrize("name", ["chain", "tree", "ngram"])
def test_the_engine_is_as_before(name: str) -> None:
    builder = BUILDERS[name]
    memory = KeptMemory(1 if builder is None else builder.slack)
    made = engine(runner(PHASES), builder, memory=memory)
    outcome(made, requests(SAMPLED)[:2])
    free, counted = memory.memory.pages.num_free_pages, (dict(made.report.ran), dict(made.report.refused))
    explained, table, owned = dict(made.report.explained), memory.pages.page_table.clone(), memory.owned()
    made.capture()
    assert (memory.memory.pages.num_free_pages, made.has_work) == (free, False)
    assert (dict(made.report.ran), dict(made.report.refused)) == counted
    assert made.report.explained == explained
    assert torch.equal(memory.pages.page_table, table)
    assert all(map(torch.equal, memory.owned(), owned))
    again = engine(EagerRunner(), builder)
    assert outcome(made, requests(SAMPLED)) == outcome(again, requests(SAMPLED))


def test_capturing_twice_captures_once() -> None:
    made = engine(runner())
    first, second = made.capture(), made.capture()
    assert first.captured
    assert not second.captured
    assert (first.sizes, second.sizes, second.nbytes) == (second.sizes, first.sizes, 0)


def test_requests_that_wait_or_run_are_not_pushed_aside() -> None:
    made = engine(runner(PHASES))
    made.submit(requests(SamplingParams())[0])
    with pytest.raises(GraphError, match=r"1 request waiting and 0 running.*before the first one is submitted"):
        made.capture()
    made.step()
    with pytest.raises(GraphError, match="0 requests waiting and 1 running"):
        made.capture()
    drive(made)
    assert made.capture().captured
    made.close()
    with pytest.raises(ClosedError):
        made.capture()
