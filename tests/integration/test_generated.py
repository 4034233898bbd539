"""Two hundred prompts that a generator makes, with any drafter, tree, batch and page size: every token is the target's."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.drafting.tree import num_candidates
from outrider.interfaces import DrafterBuilder
from outrider.loop.build import EngineOptions
from outrider.types.request import Request
from tests.generation.variants import alone, codec
from tests.support.engines import Outcome, engine_of, run
from tests.support.pair import trained_pair

NUM_BATCHES, NUM_PROMPTS = 40, 5
TEXTS = ("def f(x):\n    return x", "import os\n", "a b a b a b", "x = [1, 2, 3", "né 🦀\n", "class A:\n    pass\n\n")
END = 0


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Any ids, or pieces of code, which drafts know better."""
    if draw(st.booleans()):
        return tuple(draw(st.lists(st.integers(0, 4095), min_size=1, max_size=30)))
    text = "".join(draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4)))
    return tuple(codec().encode(text))[: draw(st.integers(1, 50))]


@st.composite
def parents(draw: st.DrawFn) -> tuple[int, ...]:
    """A tree, level by level."""
    found: list[int] = []
    above, first = [0], 1
    for _ in range(draw(st.integers(1, 4))):
        level = sorted(draw(st.lists(st.sampled_from(above), min_size=1, max_size=4)))
        found += level
        above = list(range(first, first + len(level)))
        first += len(level)
    return tuple(found)


@st.composite
def builders(draw: st.DrawFn) -> DrafterBuilder:
    pair = trained_pair()
    draft = draw(st.sampled_from([pair.eagle3, pair.eagle3, pair.eagle1]))
    match draw(st.sampled_from(("chain", "dynamic", "static", "ngram"))):
        case "chain":
            return ChainBuilder(draft, draw(st.integers(1, 7)))
        case "dynamic":
            width, depth = draw(st.integers(1, 5)), draw(st.integers(1, 5))
            most = min(num_candidates(width, depth), 24)
            return TreeBuilder(draft, width, depth, draw(st.integers(1, most)))
        case "static":
            return StaticTreeBuilder(draft, draw(parents()))
        case _:
            return NgramBuilder(draw(st.integers(1, 6)), max_n=draw(st.integers(1, 4)))


def check(request: Request, outcome: Outcome) -> None:
    """By induction over one pass without cache: each token is the best one after those before it."""
    found = alone(request.prompt, outcome.token_ids)
    behind = found.logprobs[found.num_prompt - 1 : -1].amax(dim=1) - found.chosen
    assert float(behind.max()) < 1e-4
    assert END not in outcome.token_ids[:-1]
    ended = outcome.token_ids[-1] == END
    assert outcome.reason == ("eos" if ended else "length")
    assert ended or len(outcome.token_ids) == request.max_new_tokens


@settings(max_examples=NUM_BATCHES)
@given(st.data())
def test_every_token_is_the_targets_own(data: st.DataObject) -> None:
    requests = [
        Request(data.draw(prompts()), data.draw(st.integers(1, 14)), draft_cap=data.draw(st.none() | st.integers(0, 3)))
        for _ in range(NUM_PROMPTS)
    ]
    options = EngineOptions(
        max_batch_size=data.draw(st.integers(1, NUM_PROMPTS)),
        page_size=data.draw(st.sampled_from((1, 3, 16))),
        max_length=96,
        max_prefill_tokens=data.draw(st.sampled_from((7, 64))),
        rounds_in_flight=data.draw(st.integers(0, 2)),
    )
    engine = engine_of(trained_pair().target, data.draw(builders()), options)
    for request, outcome in zip(requests, run(engine, requests), strict=True):
        check(request, outcome)


def test_a_token_that_is_not_the_targets_is_found() -> None:
    request = Request(tuple(codec().encode("import os\n")), 8)
    (outcome,) = run(engine_of(trained_pair().target, None, EngineOptions(1, max_length=64)), [request])
    check(request, outcome)
    for place in range(8):
        ids = list(outcome.token_ids)
        ids[place] = ids[place] + 1
        with pytest.raises(AssertionError):
            check(request, evolve(outcome, token_ids=ids))
