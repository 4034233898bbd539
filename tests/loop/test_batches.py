"""A request's tokens do not depend on its neighbours, its row, its pages, or on how its prompt was cut up."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafting.adaptive import AdaptiveChainBuilder
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.interfaces import DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.types import HiddenTap, RequestId, RowAlignment
from outrider.types.request import Request
from tests.support.engines import Outcome, drive, engine_of, outcomes, run
from tests.support.reference import greedy
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToySizes, ToyStack

STACK = ToyStack(ToySizes(heads=4, kv_heads=2), seed=21, null_first=True)
TARGET = Target(STACK, STACK.weights)
TAPS = (HiddenTap.at(2), HiddenTap.at(0))


def lucky_draft() -> ToyDraft:
    """A random draft of few tokens, so that some of what it proposes is right; it is fed features and hands a state on."""
    text = greedy(TARGET, (0, 5, 9), 20)
    return ToyDraft(TARGET, taps=TAPS, recurrent=True, ids=sorted(set(text))[:6])


BUILDERS: dict[str, DrafterBuilder | None] = {
    "plain": None,
    "chain": ChainBuilder(SelfDraft(TARGET, STACK), 3),
    "tree": TreeBuilder(lucky_draft(), 3, 3, 8),
    "static": StaticTreeBuilder(SelfDraft(TARGET, STACK), (0, 0, 1, 2, 3, 5)),
    "features": ChainBuilder(lucky_draft(), 2),
    "standalone": TreeBuilder(SelfDraft(TARGET, STACK, alignment=RowAlignment.SAME), 2, 2, 5),
    "n-grams": NgramBuilder(4),
    "adaptive": AdaptiveChainBuilder(lucky_draft(), 3),
}


def some_requests(count: int, seed: int) -> list[Request]:
    chooser = random.Random(seed)
    prompts = [(0, *(chooser.randrange(48) for _ in range(chooser.choice((0, 1, 2, 5, 17))))) for _ in range(count)]
    prompts[1] = prompts[0] = (0, 5, 9)  # the same prompt twice
    return [
        Request(prompt, chooser.choice((1, 2, 9, 16)), draft_cap=chooser.choice((None, None, 0, 1)))
        for prompt in prompts
    ]


def alone(builder: DrafterBuilder | None, requests: list[Request]) -> list[Outcome]:
    engine = engine_of(TARGET, builder, EngineOptions(max_batch_size=1, page_size=16))
    return [run(engine, [request])[0] for request in requests]


def shown(name: str, found: list[Outcome]) -> list[Outcome]:
    """What must not depend on the batch: everything, but for drafts whose length follows from how fast rounds are."""
    return [evolve(outcome, accept_lengths=[]) for outcome in found] if name == "adaptive" else found


@pytest.mark.parametrize("name", BUILDERS)
def test_alone_or_together_in_any_order(name: str) -> None:
    """Tokens and acceptance lengths, round by round: the draft's features and states go with their request too."""
    builder = BUILDERS[name]
    requests = some_requests(9, seed=1)
    expected = alone(builder, requests)
    for request, outcome in zip(requests, expected, strict=True):
        assert tuple(outcome.token_ids) == greedy(TARGET, request.prompt, request.max_new_tokens)
    for batch, page_size, seed in ((2, 1, 0), (4, 3, 1), (9, 16, 2)):
        order = random.Random(seed).sample(range(9), 9)
        engine = engine_of(TARGET, builder, EngineOptions(max_batch_size=batch, page_size=page_size))
        found = run(engine, [requests[index] for index in order])
        assert shown(name, found) == shown(name, [expected[index] for index in order])


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_prompts_are_cut_anywhere(name: str, budget: int) -> None:
    """A chunk may hold the end of one prompt, all of others, and the beginning of one more."""
    builder = BUILDERS[name]
    requests = some_requests(6, seed=2)
    whole = run(engine_of(TARGET, builder, EngineOptions(max_batch_size=6, page_size=4)), requests)
    options = EngineOptions(max_batch_size=6, page_size=4, max_prefill_tokens=budget)
    assert shown(name, run(engine_of(TARGET, builder, options), requests)) == shown(name, whole)


@cache
def read_at_once(name: str) -> list[Outcome]:
    return run(engine_of(TARGET, BUILDERS[name], EngineOptions(3, page_size=2)), some_requests(9, seed=3))


BEHIND = (1, 2, 5)
ROOMS = ((1, None), (3, None), (4, 24))
EVERY_PAIR = [
    (name, behind, *ROOMS[(row + column) % len(ROOMS)])
    for row, name in enumerate(BUILDERS)
    for column, behind in enumerate(BEHIND)
]
"""Every drafter with a host that is so many rounds behind; rows and pages by turns, so that each meets all of either."""


@pytest.mark.parametrize(("name", "in_flight", "batch", "num_pages"), EVERY_PAIR)
def test_the_host_may_run_behind(name: str, in_flight: int, batch: int, num_pages: int | None) -> None:
    """Requests that have ended are computed along for some rounds, then their rows and pages are used again."""
    options = EngineOptions(batch, 2, num_pages=num_pages, rounds_in_flight=in_flight, max_length=32)
    found = run(engine_of(TARGET, BUILDERS[name], options), some_requests(9, seed=3))
    assert shown(name, found) == shown(name, read_at_once(name))


@pytest.mark.parametrize("name", BUILDERS)
def test_few_pages_make_requests_wait_and_change_nothing(name: str) -> None:
    builder = BUILDERS[name]
    requests = [Request((0, *range(1, 2 + index)), 8) for index in range(7)]
    roomy = engine_of(TARGET, builder, EngineOptions(max_batch_size=4, page_size=2))
    slots = 9 + 8 + roomy.limits.slack
    tight = engine_of(TARGET, builder, EngineOptions(4, 2, num_pages=2 + -(-slots // 2) + 3))
    ids = [tight.submit(request) for request in requests]
    found: dict[RequestId, Outcome] = {}
    most = 0
    while tight.has_work:
        outcomes(tight.step(), found)
        most = max(most, tight.num_running)
    assert most < 4, "memory was meant to be short"
    assert shown(name, [found[request_id] for request_id in ids]) == shown(name, run(roomy, requests))


@settings(max_examples=15)
@given(st.data())
def test_requests_come_and_go_between_any_two_rounds(data: st.DataObject) -> None:
    """Submissions, cancellations and the four verbs in any order, with a host that may run behind."""
    builder = BUILDERS[data.draw(st.sampled_from(sorted(BUILDERS)))]
    options = EngineOptions(3, 2, num_pages=40, max_prefill_tokens=5, rounds_in_flight=data.draw(st.integers(0, 2)))
    engine = engine_of(TARGET, builder, options)
    submitted: dict[RequestId, Request] = {}
    cancelled: set[RequestId] = set()
    found: dict[RequestId, Outcome] = {}
    for verb in data.draw(
        st.lists(st.sampled_from(("submit", "cancel", "admit", "prefill", "round", "read")), max_size=30)
    ):
        match verb:
            case "submit":
                length = data.draw(st.integers(1, 8))
                request = Request(
                    (0, *range(len(submitted) + 1, len(submitted) + length)), data.draw(st.integers(1, 9))
                )
                submitted[engine.submit(request)] = request
            case "cancel" if submitted:
                request_id = data.draw(st.sampled_from(sorted(submitted)))
                engine.cancel(request_id)
                cancelled.add(request_id)
            case "admit":
                engine.admit()
            case "prefill":
                engine.prefill()
            case "round":
                engine.run_round()
            case _:
                outcomes(engine.read(data.draw(st.integers(0, 2))), found)
    drive(engine, found)
    assert found.keys() == submitted.keys()
    for request_id, request in submitted.items():
        expected = greedy(TARGET, request.prompt, request.max_new_tokens)
        outcome = found[request_id]
        if outcome.reason == "cancelled":
            assert request_id in cancelled
            assert tuple(outcome.token_ids) == expected[: len(outcome.token_ids)]
        else:
            assert (tuple(outcome.token_ids), outcome.reason) == (expected, "length")


def test_an_engine_built_in_inference_mode_serves_outside_of_it() -> None:
    """Its tensors are inference tensors then, and may only be changed in that mode."""
    with torch.inference_mode():
        engine = engine_of(TARGET, BUILDERS["features"], EngineOptions(max_batch_size=2))
    requests = some_requests(4, seed=4)
    ids = [engine.submit(request) for request in requests]
    engine.admit()
    engine.cancel(ids[0])
    found = drive(engine)
    for request_id, request in list(zip(ids, requests, strict=True))[1:]:
        assert tuple(found[request_id].token_ids) == greedy(TARGET, request.prompt, request.max_new_tokens)
