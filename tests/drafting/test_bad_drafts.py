"""Whatever a draft proposes, the text is the target's own: random drafts, and drafts that overflow."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import BoundDraft, DrafterBuilder
from outrider.loop.build import EngineOptions
from outrider.types import HiddenTap, SamplingParams
from outrider.types.request import Request
from tests.support.engines import engine_of, run
from tests.support.recording import RecordingBuilder
from tests.support.reference import greedy
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import ToySizes, toy_target

PROMPTS = ((3,), (4, 4, 4), (1, 2, 3, 4, 5, 6, 7), (47, 0, 13))
TAPS = {
    "no taps": (),
    "one tap": (HiddenTap.at(2),),
    "three taps": (HiddenTap.at(0), HiddenTap.final_norm(), HiddenTap.at(1)),
}


def builders(draft: BoundDraft) -> tuple[DrafterBuilder, ...]:
    return (
        ChainBuilder(draft, 3),
        TreeBuilder(draft, 3, 3, 8),
        TreeBuilder(draft, 4, 1, 2),
        StaticTreeBuilder(draft, (0, 0, 1, 1, 3, 5)),
    )


@pytest.mark.parametrize("ids", [None, (40, 3, 17, 21, 5, 9)], ids=["full vocabulary", "reduced vocabulary"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["stateless", "recurrent"])
@pytest.mark.parametrize("taps", TAPS.values(), ids=TAPS.keys())
def test_random_drafts_change_nothing(
    taps: tuple[HiddenTap, ...], recurrent: bool, ids: tuple[int, ...] | None
) -> None:
    target = toy_target(ToySizes(heads=4, kv_heads=2), seed=11)
    draft = ToyDraft(target, taps=taps, recurrent=recurrent, ids=ids)
    requests = [Request(prompt, 9 + index) for index, prompt in enumerate(PROMPTS)]
    for builder, page_size in zip(builders(draft), (1, 3, 7, 16), strict=True):
        engine = engine_of(target, builder, EngineOptions(max_batch_size=3, page_size=page_size))
        for request, outcome in zip(requests, run(engine, requests), strict=True):
            assert tuple(outcome.token_ids) == greedy(target, request.prompt, request.max_new_tokens)
            assert outcome.reason == "length"


class Overflowing(ToyDraft):
    """Its logits are NaN or infinite wherever its most probable token has a certain remainder."""

    bad: float = math.nan

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        spoilt = logits.argmax(dim=-1, keepdim=True) % 3 == 1
        return logits.masked_fill(spoilt, self.bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_drafts_that_overflow_change_nothing(bad: float) -> None:
    """NaN sorts above everything: a candidate must not be chosen without its parent."""
    for seed in range(4):
        target = toy_target(seed=seed)
        draft = Overflowing(target, taps=(HiddenTap.at(1),), recurrent=True, seed=seed)
        draft.bad = bad
        requests = [Request(prompt, 12) for prompt in PROMPTS]
        for inner in (*builders(draft), TreeBuilder(draft, 3, 4, 5)):
            recording = RecordingBuilder(inner)
            for request, outcome in zip(requests, run(engine_of(target, recording), requests), strict=True):
                assert tuple(outcome.token_ids) == greedy(target, request.prompt, 12)
            for row, node in itertools.product(recording.proposed, range(1, len(recording.proposed[0].tokens) + 1)):
                assert len(row.path_to(node)) == row.depths[node - 1], "its parent was chosen too"


def test_a_draft_that_may_propose_none_of_the_allowed_tokens_changes_nothing() -> None:
    """Its scores are all minus infinity then."""
    target = toy_target(seed=3)
    draft = ToyDraft(target, ids=(1, 2, 3, 4))
    sampling = SamplingParams(allowed_token_ids=(20, 21, 22, 23, 30))
    requests = [Request(prompt, 10, sampling) for prompt in PROMPTS]
    plain = [outcome.token_ids for outcome in run(engine_of(target), requests)]
    assert all(set(ids) <= {20, 21, 22, 23, 30} for ids in plain)
    for builder in (*builders(draft), TreeBuilder(draft, 3, 4, 5)):
        recording = RecordingBuilder(builder)
        assert [outcome.token_ids for outcome in run(engine_of(target, recording), requests)] == plain
        for row, node in itertools.product(recording.proposed, range(1, len(recording.proposed[0].tokens) + 1)):
            assert len(row.path_to(node)) == row.depths[node - 1]


def test_one_draft_serves_several_engines() -> None:
    """A bound draft holds weights and nothing of a batch."""
    target = toy_target(seed=4)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    engines = [engine_of(target, builder) for builder in builders(draft)]
    ids = [engine.submit(Request(PROMPTS[2], 15)) for engine in engines]
    found: list[list[int]] = [[] for _ in engines]
    while any(engine.has_work for engine in engines):
        for engine, tokens, request_id in zip(engines, found, ids, strict=True):
            for emission in engine.step():
                assert emission.request_id == request_id
                tokens += emission.token_ids
    assert [tuple(tokens) for tokens in found] == [greedy(target, PROMPTS[2], 15)] * len(engines)


def test_weights_are_left_as_they_are() -> None:
    target = toy_target(seed=4)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    assert target.weights is not None
    weights = (target.weights.embedding, target.weights.head, draft.embedding, draft.head, draft.fuse, draft.carry)
    before = [weight.clone() for weight in weights]
    run(engine_of(target, TreeBuilder(draft, 3, 3, 8)), [Request(PROMPTS[1], 12)])
    assert all(torch.equal(old, new) for old, new in zip(before, weights, strict=True))
