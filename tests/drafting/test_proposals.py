"""What drafters propose, node by node, against a reference without cache, batch or tree attention.

The draft equals the target here, so the reference for every node is the target itself on that node's own path.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.types import HiddenTap, RowAlignment
from outrider.types.request import Request
from tests.support.engines import Outcome, engine_of, run
from tests.support.recording import Proposed, RecordingBuilder
from tests.support.reference import greedy, next_logits
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToyStack, toy_target

PROMPTS = ((0, 5, 9, 22), (0, 31), (0, 7, 7, 3, 2, 40, 11))
REQUESTS = [Request(prompt, 9 + index) for index, prompt in enumerate(PROMPTS)]
OPTIONS = EngineOptions(max_batch_size=3, page_size=3)
ALIGNMENTS = pytest.mark.parametrize("alignment", RowAlignment, ids=lambda alignment: alignment.name.lower())


STACK = ToyStack(seed=5, null_first=True)
TARGET = Target(STACK, STACK.weights)


@cache
def pair(alignment: RowAlignment = RowAlignment.SHIFTED) -> tuple[Target, SelfDraft]:
    return TARGET, SelfDraft(TARGET, STACK, alignment=alignment)


@cache
def log_probs(tokens: tuple[int, ...]) -> tuple[float, ...]:
    target, _ = pair()
    values = next_logits(target, tokens).log_softmax(dim=-1)
    return tuple(float(value) for value in values)


def best(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The ``count`` most probable next tokens."""
    values = log_probs(tokens)
    return tuple(sorted(range(len(values)), key=lambda token: -values[token])[:count])


def proposals(builder: DrafterBuilder) -> tuple[list[Proposed], list[Outcome]]:
    recording = RecordingBuilder(builder)
    outcomes = run(engine_of(pair()[0], recording, OPTIONS), REQUESTS)
    for request, outcome in zip(REQUESTS, outcomes, strict=True):
        assert tuple(outcome.token_ids) == greedy(pair()[0], request.prompt, request.max_new_tokens)
    assert recording.proposed
    return recording.proposed, outcomes


@st.composite
def parent_lists(draw: st.DrawFn) -> tuple[int, ...]:
    """Any tree in level order: bushes, chains, and levels of one node below wide ones."""
    parents: list[int] = []
    depths = [0]
    for node in range(1, draw(st.integers(1, 9)) + 1):
        allowed = [parent for parent in range(node) if depths[parent] + 1 >= depths[-1]]
        parents.append(draw(st.sampled_from(allowed)))
        depths.append(depths[parents[-1]] + 1)
    return tuple(parents)


def check_static(parents: tuple[int, ...], alignment: RowAlignment) -> None:
    _, draft = pair(alignment)
    proposed, outcomes = proposals(StaticTreeBuilder(draft, parents))
    for row in proposed:
        assert row.parents == parents
        for node in range(len(parents) + 1):
            children = row.children_of(node)
            assert children == best(row.history + row.path_to(node), len(children)), (parents, node)
    # First children hold the target's own tokens, so the whole path along them is accepted in every round.
    node, expected = 0, 1
    while node in parents:
        node, expected = parents.index(node) + 1, expected + 1
    assert all(length == expected for outcome in outcomes for length in outcome.accept_lengths[:-1])


@ALIGNMENTS
@pytest.mark.parametrize("parents", [(0, 0, 1, 2, 3, 5), (0, 0, 0, 1, 2, 3, 6, 7), (0,), (0, 1, 2, 3), (0, 0, 2, 1)])
def test_static_trees_hold_the_best_children_of_each_path(parents: tuple[int, ...], alignment: RowAlignment) -> None:
    """The first two have a level of one inner node below wider ones: its slot is not its depth."""
    check_static(parents, alignment)


@settings(max_examples=25)
@given(parent_lists(), st.sampled_from(RowAlignment))
def test_random_static_trees_hold_the_best_children_of_each_path(
    parents: tuple[int, ...], alignment: RowAlignment
) -> None:
    check_static(parents, alignment)


def grown(history: tuple[int, ...], width: int, depth: int, count: int) -> list[tuple[tuple[int, ...], float]]:
    """EAGLE-2 written with paths: the chosen paths with their scores, in level order."""
    levels: list[list[tuple[tuple[int, ...], float]]] = []
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth):
        stored = [
            ((*path, token), score + log_probs(history + path)[token])
            for path, score in frontier
            for token in best(history + path, width)
        ]
        levels.append(stored)
        frontier = sorted(stored, key=lambda candidate: -candidate[1])[:width]
    everything = [candidate for level in levels for candidate in level]
    return sorted(sorted(everything, key=lambda one: -one[1])[:count], key=lambda one: len(one[0]))


@pytest.mark.parametrize(
    ("width", "depth", "count"),
    [(3, 3, 7), (3, 3, 21), (2, 4, 3), (4, 1, 2), (4, 1, 4), (1, 4, 4), (5, 2, 1), (2, 5, 18)],
)
@ALIGNMENTS
def test_dynamic_trees_are_those_of_the_reference(width: int, depth: int, count: int, alignment: RowAlignment) -> None:
    _, draft = pair(alignment)
    proposed, _ = proposals(TreeBuilder(draft, width, depth, count))
    for row in proposed:
        found = {row.path_to(node): row.depths[node - 1] for node in range(1, count + 1)}
        wanted = [path for path, _ in grown(row.history, width, depth, count)]
        assert set(found) == set(wanted)
        assert all(len(path) == depth_of for path, depth_of in found.items())
        assert all(parent < node for node, parent in enumerate(row.parents, start=1))


def test_a_reference_of_another_depth_is_noticed() -> None:
    _, draft = pair()
    proposed, _ = proposals(TreeBuilder(draft, 3, 2, 4))
    assert all(len({row.path_to(node) for node in range(1, 5)}) == 4 for row in proposed)
    assert any(
        {row.path_to(node) for node in range(1, 5)} != {path for path, _ in grown(row.history, 2, 3, 4)}
        for row in proposed
    )


@ALIGNMENTS
def test_chains_hold_the_targets_own_tokens(alignment: RowAlignment) -> None:
    target, draft = pair(alignment)
    proposed, _ = proposals(ChainBuilder(draft, 6))
    for row in proposed:
        assert row.tokens == greedy(target, row.history, 6)


def accept_lengths(builder: DrafterBuilder, target: Target) -> list[list[int]]:
    return [outcome.accept_lengths for outcome in run(engine_of(target, builder, OPTIONS), REQUESTS)]


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("taps", [(), (HiddenTap.at(1), HiddenTap.final_norm())])
def test_a_tree_of_width_one_is_a_chain(recurrent: bool, taps: tuple[HiddenTap, ...]) -> None:
    """With a random draft of few tokens, some of which the target takes: states, taps and tokens must all agree."""
    target = toy_target(seed=8, null_first=True)
    common = tuple(dict.fromkeys(token for request in REQUESTS for token in greedy(target, request.prompt, 12)))[:5]
    draft = ToyDraft(target, taps=taps, recurrent=recurrent, ids=sorted(common))
    found: list[list[Proposed]] = []
    for builder in (ChainBuilder(draft, 4), TreeBuilder(draft, 1, 4, 4), StaticTreeBuilder(draft, (0, 1, 2, 3))):
        recording = RecordingBuilder(builder)
        run(engine_of(target, recording, OPTIONS), REQUESTS)
        found.append(recording.proposed)
    assert found[0] == found[1] == found[2]
    assert any(row.tokens[0] == greedy(target, row.history, 1)[0] for row in found[0]), "some are accepted"


def test_a_reduced_vocabulary_is_accepted_up_to_its_first_missing_token() -> None:
    target, _ = pair()
    texts = [greedy(target, request.prompt, request.max_new_tokens) for request in REQUESTS]
    seen = sorted({token for text in texts for token in text})
    kept = [token for index, token in enumerate(seen) if index % 4]
    assert 0 < len(kept) < len(seen)
    draft = SelfDraft(TARGET, STACK, ids=kept[::-1])  # in an order of its own
    lengths = accept_lengths(ChainBuilder(draft, 3), target)
    for text, found in zip(texts, lengths, strict=True):
        expected: list[int] = []
        place = 1  # the first token comes from prefill
        while place < len(text):
            run_length = next((n for n in range(3) if place + n < len(text) and text[place + n] not in kept), 3)
            expected.append(run_length + 1)
            place += run_length + 1
        assert found[:-1] == expected[:-1]
        assert len(found) == len(expected)


def test_the_seed_of_the_pair_gives_no_near_ties() -> None:
    """The reference adds in another order than the cache; a tie would make the other tests here fail at random."""
    target, _ = pair()
    for request in REQUESTS:
        text = request.prompt + greedy(target, request.prompt, request.max_new_tokens)
        for end in range(len(request.prompt), len(text)):
            top = sorted(log_probs(text[:end]))[-2:]
            assert top[1] - top[0] > 1e-3
