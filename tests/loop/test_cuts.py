"""A request may end on any token of a round: by a token limit, an end-of-sequence id, or the context."""

from __future__ import annotations

from functools import cache

import pytest

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.types.request import Request
from tests.support.engines import Outcome, engine_of, run
from tests.support.reference import greedy
from tests.support.toy_drafts import self_pair

K = 4
PROMPTS = ((0, 5, 9, 22), (0, 31, 4), (0, 7, 7, 3, 2))
OPTIONS = EngineOptions(max_batch_size=4, page_size=3)


def perfect() -> tuple[Target, dict[str, DrafterBuilder]]:
    """A draft that is always right: rounds accept up to K tokens and a bonus, so a cut can fall on any of them."""
    target, draft = self_pair(seed=5)
    return target, {
        "chain": ChainBuilder(draft, K),
        "tree": TreeBuilder(draft, 2, K, 14),
        "static": StaticTreeBuilder(draft, (0, 0, 1, 2, 3, 5)),
    }


TARGET, BUILDERS = perfect()


@cache
def uncut(name: str, prompt: tuple[int, ...]) -> list[int]:
    """Acceptance lengths of a request that is not cut for long."""
    (outcome,) = run(engine_of(TARGET, BUILDERS[name], OPTIONS), [Request(prompt, 60)])
    assert name == "tree" or set(outcome.accept_lengths[:-1]) == {K + 1}
    return outcome.accept_lengths


def rounds_for(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """Uncut acceptance lengths up to the round that emits token ``count``; the first one is the prefill's."""
    lengths = uncut(name, prompt)
    return lengths[: next(n for n in range(len(lengths) + 1) if 1 + sum(lengths[:n]) >= count)]


@pytest.mark.parametrize("name", BUILDERS)
def test_token_limits_from_one_on(name: str) -> None:
    engine = engine_of(TARGET, BUILDERS[name], OPTIONS)
    for prompt in PROMPTS:
        limits = range(1, 2 * K + 5)
        found = run(engine, [Request(prompt, limit) for limit in limits])
        for limit, outcome in zip(limits, found, strict=True):
            expected = greedy(TARGET, prompt, limit)
            assert outcome == Outcome(list(expected), rounds_for(name, prompt, limit), "length")


@pytest.mark.parametrize("name", BUILDERS)
def test_end_ids_on_every_token_of_a_round(name: str) -> None:
    """The end falls on the prefill's token, on each drafted token of a round, and on its bonus."""
    engine = engine_of(TARGET, BUILDERS[name], OPTIONS)
    places: set[int] = set()
    for prompt in PROMPTS:
        text = greedy(TARGET, prompt, 30)
        ends = sorted(set(text), key=text.index)
        found = run(engine, [Request(prompt, 30, eos_ids=(47, end)) for end in ends])
        for end, outcome in zip(ends, found, strict=True):
            cut = greedy(TARGET, prompt, 30, eos_ids=(47, end))
            assert cut == text[: len(cut)]
            rounds = rounds_for(name, prompt, len(cut))
            assert outcome == Outcome(list(cut), rounds, "eos")
            places.add(len(cut) - 2 - sum(rounds[:-1]))
    assert places == {-1, *range(K + 1)}, "some place of a round was never the end"


def test_an_end_id_past_a_limit_does_not_count_and_at_the_limit_it_does() -> None:
    prompt = PROMPTS[0]
    text = greedy(TARGET, prompt, 12)
    engine = engine_of(TARGET, BUILDERS["chain"], OPTIONS)
    end = text[6]
    assert end not in text[:6]
    before, there = run(engine, [Request(prompt, 6, eos_ids=(end,)), Request(prompt, 7, eos_ids=(end,))])
    assert (tuple(before.token_ids), before.reason) == (text[:6], "length")
    assert (tuple(there.token_ids), there.reason) == (text[:7], "eos")


def test_an_end_id_that_was_drafted_and_rejected_does_not_count() -> None:
    """Requests stop on ids that appear in proposals all the time and never in the text."""
    target, draft = self_pair(seed=5)
    text = greedy(target, PROMPTS[1], 20)
    unused = tuple(token for token in range(48) if token not in text)[:8]
    engine = engine_of(target, TreeBuilder(draft, 4, 3, 36), OPTIONS)
    (outcome,) = run(engine, [Request(PROMPTS[1], 20, eos_ids=unused)])
    assert (tuple(outcome.token_ids), outcome.reason) == (text, "length")


def test_no_end_ids_and_the_targets_own() -> None:
    text = greedy(TARGET, PROMPTS[0], 12)
    target, draft = self_pair(seed=5)
    ending = Target(target.stack, target.weights, eos_ids=(text[4],))
    engine = engine_of(ending, ChainBuilder(draft, K), OPTIONS)
    own, none = run(engine, [Request(PROMPTS[0], 12), Request(PROMPTS[0], 12, eos_ids=())])
    assert (tuple(own.token_ids), own.reason) == (text[: text.index(text[4]) + 1], "eos")
    assert (tuple(none.token_ids), none.reason) == (text, "length")


@pytest.mark.parametrize("name", BUILDERS)
def test_the_engines_own_context_limit(name: str) -> None:
    """``max_length`` is shorter than the target's context, which goes on past it."""
    for limit in range(8, 16):
        engine = engine_of(TARGET, BUILDERS[name], EngineOptions(max_batch_size=3, page_size=4, max_length=limit))
        for prompt, outcome in zip(PROMPTS, run(engine, [Request(prompt, 90) for prompt in PROMPTS]), strict=True):
            assert tuple(outcome.token_ids) == greedy(TARGET, prompt, limit - len(prompt))
            assert outcome.reason == "context"


def test_a_token_limit_at_the_context_limit_is_a_token_limit() -> None:
    engine = engine_of(TARGET, BUILDERS["chain"], EngineOptions(max_length=12))
    lengths = [Request(PROMPTS[0], count) for count in (7, 8, 9)]
    assert [outcome.reason for outcome in run(engine, lengths)] == ["length", "length", "context"]


def test_rows_that_end_in_one_round_leave_the_others_alone() -> None:
    """One round ends requests by token limit, end id and context, and others go on."""
    builder = BUILDERS["tree"]
    text = greedy(TARGET, PROMPTS[0], 30)
    end = next(token for index, token in enumerate(text) if index > 3 and token not in text[:index])
    requests = [
        Request(PROMPTS[0], 4),
        Request(PROMPTS[1], 30),
        Request(PROMPTS[0], 30, eos_ids=(end,)),
        Request((0, *range(1, 28)), 30),
        Request(PROMPTS[2], 23, draft_cap=0),
    ]
    engine = engine_of(TARGET, builder, EngineOptions(max_batch_size=5, page_size=2, max_length=32))
    found = run(engine, requests)
    assert [outcome.reason for outcome in found] == ["length", "context", "eos", "context", "length"]
    for request, outcome in zip(requests, found, strict=True):
        room = min(request.max_new_tokens, 32 - len(request.prompt))
        assert tuple(outcome.token_ids) == greedy(TARGET, request.prompt, room, eos_ids=request.eos_ids or ())
