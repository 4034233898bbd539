"""Prompts in turns with rounds: nobody who runs waits longer than one pass, and nothing that comes out depends on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
import torch
from attrs import evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.drafting.adaptive import AdaptiveChainBuilder
from outrider.drafting.builders import ChainBuilder, NoDraftBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ConfigurationError
from outrider.graphs import GraphOptions, request_buckets, token_buckets
from outrider.interfaces import AttnPlanner, Drafter, DrafterBuilder, DrafterParts, GraphBody, GraphRunner, Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.loop.rows import RowStore
from outrider.types import AttnBatch, HiddenTap, Phase, RequestId, RoundOutcome, RowAlignment, SamplingParams
from outrider.types.request import Request
from outrider.types.state import DecodeState
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.support.engines import Outcome, drive, engine_of, outcomes, run
from tests.support.host_drafter import HostBuilder
from tests.support.reference import greedy
from tests.support.runners import RUNNERS
from tests.support.sum_drafter import SumBuilder
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToySizes, ToyStack

STACK = ToyStack(ToySizes(heads=4, kv_heads=2), seed=21)
TARGET = Target(STACK, STACK.weights)
DRAFT = ToyDraft(TARGET, taps=(HiddenTap.at(2), HiddenTap.at(0)), recurrent=True, ids=range(0, 48, 5))
BUDGET = 5

BUILDERS: Mapping[str, DrafterBuilder | None] = {
    "plain": None,
    "chain": ChainBuilder(SelfDraft(TARGET, STACK), 3),
    "tree": TreeBuilder(DRAFT, 3, 3, 8),
    "static": StaticTreeBuilder(SelfDraft(TARGET, STACK), (0, 0, 1, 2)),
    "standalone": ChainBuilder(SelfDraft(TARGET, STACK, alignment=RowAlignment.SAME), 2),
    "n-grams": NgramBuilder(4),
    "adaptive": AdaptiveChainBuilder(DRAFT, 3),
    "host": HostBuilder(),
}


def padded_runner() -> GraphRunner:
    """Every round runs all rows; what a graph should not read is NaN."""
    buckets = GraphOptions(request_buckets((4,)), token_buckets((8, 64)), poison=True)
    return tape_runner(buckets, medium=TapeMedium(debug=True))


EVERY_RUNNER: Mapping[str, Callable[[], GraphRunner]] = {**RUNNERS, "padded": padded_runner}
OPTIONS = EngineOptions(max_batch_size=4, page_size=4, max_prefill_tokens=BUDGET)


def engine(builder: DrafterBuilder | None, runner: GraphRunner, options: EngineOptions = OPTIONS) -> Engine:
    return build_engine(TARGET, builder, attention=SdpaBackend(), runner=runner, options=options)


def prompt(length: int, seed: int) -> tuple[int, ...]:
    chooser = random.Random(seed)
    return tuple(chooser.randrange(48) for _ in range(length))


# -- who waits for what ------------------------------------------------------------------------------------------------


class Watched(EagerRunner):
    """Keeps how many tokens each pass over prompts was of."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        if phase is Phase.TARGET_PREFILL:
            self.passes.append(sum(batch.query_lens))
        return super().run(phase, body, inputs, batch, planner, rows)


@given(st.data())
@settings(max_examples=25)
def test_a_step_is_one_pass_at_most_and_a_round_for_everyone_who_runs(data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, 12))
    runner = Watched()
    made = engine(BUILDERS["tree"], runner, evolve(OPTIONS, max_prefill_tokens=budget))
    coming = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30), st.integers(1, 20)), max_size=8))
    running: set[RequestId] = set()
    later = 0
    total = 0
    while coming or made.has_work:
        if coming and later == 0:
            later, length, count = coming.pop()
            made.submit(Request(prompt(length, length), count, eos_ids=()))
            total += length
        later = max(later - 1, 0)
        before = len(runner.passes)
        emissions = made.step()
        assert [size for size in runner.passes[before:] if size > budget] == []
        assert len(runner.passes) - before <= 1
        if made.num_prefilling:
            assert runner.passes[before:] == [budget], "a pass is full where prompts are left"
        served = {each.request_id for each in emissions if each.accept_length is not None}
        assert running <= served, "everyone who ran was given a round"
        running |= {each.request_id for each in emissions}
        running -= {each.request_id for each in emissions if each.finish_reason is not None}
    assert sum(runner.passes) == total, "every token of every prompt was run once"


def test_prompts_that_fit_are_one_pass() -> None:
    runner = Watched()
    made = engine(None, runner, evolve(OPTIONS, max_prefill_tokens=40))
    for length in (3, 20, 1, 16):
        made.submit(Request(prompt(length, length), 4))
    made.step()
    assert runner.passes == [40]
    assert made.num_prefilling == 0


def test_the_verb_and_what_it_leaves() -> None:
    """A pass may be smaller than the engine's; the first that came is served first, whoever else would fit."""
    runner = Watched()
    made = engine(BUILDERS["chain"], runner)
    long, short = made.submit(Request(prompt(9, 1), 6)), made.submit(Request(prompt(2, 2), 6))
    assert (made.num_waiting, made.num_running, made.num_prefilling) == (2, 0, 0)
    made.admit()
    assert (made.num_waiting, made.num_running, made.num_prefilling) == (0, 2, 2)
    made.prefill(max_tokens=2)
    made.prefill()
    assert (made.num_running, made.num_prefilling, made.read()) == (2, 2, [])
    made.run_round()
    assert made.read() == [], "nobody runs yet"
    made.prefill(3)
    assert made.num_prefilling == 1
    (first,) = made.read()
    assert (first.request_id, first.token_ids) == (long, greedy(TARGET, prompt(9, 1), 1))
    made.run_round()
    made.prefill()
    assert made.num_prefilling == 0
    assert [each.request_id for each in made.read()] == [long, short]
    assert runner.passes == [2, 5, 3, 1]
    made.prefill()
    assert runner.passes == [2, 5, 3, 1], "no prompts, no pass"


@pytest.mark.parametrize("asked", [0, -3, BUDGET + 1])
def test_a_pass_that_cannot_be_is_refused(asked: int) -> None:
    made = engine(None, EagerRunner())
    made.submit(Request((1, 2), 2))
    made.admit()
    with pytest.raises(ConfigurationError, match=rf"a pass of {asked} tokens .*allowed is 1 to {BUDGET}"):
        made.prefill(asked)
    assert made.num_prefilling == 1
    assert len(drive(made)) == 1


# -- what comes out ----------------------------------------------------------------------------------------------------


@cache
def shared(name: str, runner: str) -> Engine:
    """One engine for many examples: rows, pages, graphs and what the drafter keeps are used again and again."""
    return engine(BUILDERS[name], EVERY_RUNNER[runner]())


@cache
def alone(name: str, token_ids: tuple[int, ...], count: int) -> Outcome:
    made = engine_of(TARGET, BUILDERS[name], EngineOptions(max_batch_size=1, page_size=16))
    (outcome,) = run(made, [Request(token_ids, count, eos_ids=())])
    assert tuple(outcome.token_ids) == greedy(TARGET, token_ids, count)
    return outcome


def check(made: Engine, name: str, actions: Sequence[tuple[str, int, int]]) -> None:
    """Prompts that come, and some that are cancelled, while others run; between any two steps."""
    submitted: dict[RequestId, Request] = {}
    cancelled: set[RequestId] = set()
    found: dict[RequestId, Outcome] = {}
    for action, one, two in actions:
        match action:
            case "submit":
                request = Request(prompt(one, one % 5), two, eos_ids=())
                submitted[made.submit(request)] = request
            case "cancel" if submitted:
                request_id = sorted(submitted)[-1 - one % min(len(submitted), 4)]
                made.cancel(request_id)
                cancelled.add(request_id)
            case _:
                outcomes(made.step(), found)
    drive(made, found)
    assert found.keys() == submitted.keys()
    for request_id, request in submitted.items():
        outcome, expected = found[request_id], alone(name, request.prompt, request.max_new_tokens)
        if outcome.reason == "cancelled":
            assert request_id in cancelled
            assert outcome.token_ids == expected.token_ids[: len(outcome.token_ids)]
            continue
        assert (outcome.token_ids, outcome.reason) == (expected.token_ids, "length")
        if name != "adaptive":  # whose lengths follow from how fast rounds are
            assert outcome.accept_lengths == expected.accept_lengths


LENGTHS, COUNTS = st.sampled_from((1, 2, 4, 5, 6, 11, 23)), st.sampled_from((1, 2, 7, 15))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), LENGTHS, COUNTS),
        st.tuples(st.just("submit"), LENGTHS, COUNTS),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


@pytest.mark.parametrize("name", BUILDERS)
@given(actions=ACTIONS)
@settings(max_examples=12)
def test_texts_and_acceptance_lengths_are_those_of_requests_alone(
    name: str, actions: list[tuple[str, int, int]]
) -> None:
    check(shared(name, "eager"), name, actions)


MIXED = [
    ("submit", 4, 15),
    ("submit", 2, 15),
    ("step", 0, 0),
    ("step", 0, 0),
    ("submit", 23, 7),
    ("submit", 11, 15),
    *[("step", 0, 0)] * 3,
    ("submit", 6, 7),
    ("submit", 23, 2),
    *[("step", 0, 0)] * 4,
    ("cancel", 0, 0),
    ("submit", 11, 7),
    ("step", 0, 0),
]
CAPTURED = [
    ("rounds", "chain"),
    ("rounds", "tree"),
    ("padded", "plain"),
    ("padded", "chain"),
    ("padded", "tree"),
    ("padded", "standalone"),
    ("padded", "n-grams"),
    ("padded", "host"),
    ("phases", "static"),
    ("breakable", "chain"),
    ("breakable", "host"),
]


@pytest.mark.parametrize(("runner", "name"), CAPTURED)
def test_on_every_runner(runner: str, name: str) -> None:
    """Graphs of rounds run the rows of half run prompts along, idle, and are the same ones when these run."""
    made = engine(BUILDERS[name], EVERY_RUNNER[runner]())
    for behind in range(3):  # the second time round all comes from graphs
        check(made, name, MIXED[behind:])


def test_a_prompt_that_is_half_run_costs_no_captures() -> None:
    """Whatever stands between and behind those that run, rounds find the graphs that were captured ahead."""
    made = engine(BUILDERS["chain"], padded_runner())
    made.capture()
    captured = len(made.report.captured)
    check(made, "chain", MIXED)
    assert made.report.ran[Phase.ROUND, "round"] > 10
    assert [record for record in made.report.captured[captured:] if record.phase is Phase.ROUND] == []


def test_a_round_that_sees_the_pages_of_a_half_run_prompt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above fails where idle rows have pages: they write to the beginning of the prompt."""
    view = RowStore.view

    def with_pages(rows: RowStore, first: int, count: int, max_length: int) -> DecodeState:
        return evolve(view(rows, first, count, max_length), page_table=rows.page_table(first, count))

    monkeypatch.setattr(RowStore, "view", with_pages)
    with pytest.raises(AssertionError):
        check(engine(BUILDERS["chain"], padded_runner()), "chain", MIXED)


@pytest.mark.parametrize("runner", EVERY_RUNNER)
@pytest.mark.parametrize("moves", [True, False])
def test_what_a_drafter_keeps_of_a_half_run_prompt_outlasts_the_rounds_of_others(moves: bool, runner: str) -> None:
    """This one drafts rightly only if it was told every token and lost none; without the spare row a padded round spoils it."""
    wanted = [Request(prompt(length, length), 12, eos_ids=()) for length in (3, 13, 17)]
    texts = tuple((*each.prompt, *greedy(TARGET, each.prompt, 12)) for each in wanted)
    made = engine(SumBuilder(texts, moves), EVERY_RUNNER[runner](), evolve(OPTIONS, max_prefill_tokens=3))
    for turn in range(2):
        found = run(made, wanted)
        assert [tuple(each.token_ids) for each in found] == [text[-12:] for text in texts]
        drafted = [each.accept_lengths[:-1] == [2] * (len(each.accept_lengths) - 1) for each in found]
        if moves:
            assert all(drafted)
        elif runner == "padded" and turn:
            assert drafted == [True, False, False]


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_a_host_that_runs_behind(in_flight: int) -> None:
    made = engine(BUILDERS["tree"], EagerRunner(), evolve(OPTIONS, rounds_in_flight=in_flight))
    check(made, "tree", MIXED)


def test_sampling_of_a_half_run_prompt_does_not_reach_the_rounds_of_others() -> None:
    """Neither what it asks for nor what it switches on: graphs of greedy rounds serve until it runs."""
    made = engine(BUILDERS["chain"], padded_runner())
    heated = SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.3, banned_token_ids=(7,))
    wanted = [Request(prompt(3, 1), 20, eos_ids=()), Request(prompt(23, 3), 9, heated, eos_ids=())]
    expected = [run(engine_of(TARGET, None), [request])[0].token_ids for request in wanted]
    for _ in range(3):
        assert [outcome.token_ids for outcome in run(made, wanted)] == expected


def test_cancelling_a_half_run_prompt_gives_its_place_to_the_next() -> None:
    """Which begins at its own beginning."""
    made = engine(BUILDERS["chain"], EagerRunner())
    running = made.submit(Request(prompt(4, 1), 20, eos_ids=()))
    found: dict[RequestId, Outcome] = {}
    outcomes(made.step(), found)
    gone, later = (made.submit(Request(prompt(23, seed), 9, eos_ids=())) for seed in (2, 3))
    for _ in range(2):
        outcomes(made.step(), found)
    made.cancel(gone)
    assert (made.num_running, made.num_prefilling) == (2, 1)
    drive(made, found)
    assert found[gone] == Outcome([], [], "cancelled")
    assert tuple(found[running].token_ids) == greedy(TARGET, prompt(4, 1), 20)
    assert tuple(found[later].token_ids) == greedy(TARGET, prompt(23, 3), 9)


# -- how long rounds take ----------------------------------------------------------------------------------------------


@frozen(eq=False)
class ListeningBuilder(NoDraftBuilder):
    """Plain decoding by somebody who wants to know how rounds went."""

    heard: list[RoundOutcome] = field(factory=list[RoundOutcome])

    def build(self, parts: DrafterParts) -> Drafter:
        parts.feedback.listen(self.heard.append)
        return super().build(parts)


def test_a_round_after_a_pass_that_ends_no_prompt_has_no_time_of_its_own() -> None:
    """Where the host runs behind, the time from one arrival to the next is that of the pass as well."""
    builder = ListeningBuilder()
    made = engine(builder, EagerRunner(), evolve(OPTIONS, rounds_in_flight=1))
    made.submit(Request(prompt(3, 1), 30, eos_ids=()))
    for _ in range(5):
        made.step()
    timed = [outcome.seconds is not None for outcome in builder.heard]
    assert timed == [False, *[True] * (len(timed) - 1)]
    assert len(timed) > 2
    made.submit(Request(prompt(23, 1), 2, eos_ids=()))
    made.step()
    while made.num_prefilling:
        made.step()
    during = [outcome.seconds for outcome in builder.heard[len(timed) :]]
    assert len(during) >= 4
    assert during[1:] == [None] * (len(during) - 1)


def test_inference_mode_is_the_engines_own() -> None:
    """The verbs may be called inside and outside of it, by turns, while a prompt is half run."""
    made = engine(BUILDERS["tree"], EagerRunner())
    request_id = made.submit(Request(prompt(23, 1), 9, eos_ids=()))
    made.step()
    with torch.inference_mode():
        made.step()
    assert tuple(drive(made)[request_id].token_ids) == greedy(TARGET, prompt(23, 1), 9)
