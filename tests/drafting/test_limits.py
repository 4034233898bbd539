"""Near the end of the target's or the draft's context, and for requests that want short drafts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import BoundDraft, DrafterBuilder, LayerStackProvider, Target
from outrider.loop.build import EngineOptions
from outrider.types import HiddenTap, MediaView
from outrider.types.request import Request
from tests.support.engines import engine_of, run
from tests.support.recording import RecordingBuilder
from tests.support.reference import greedy
from tests.support.toy_drafts import ToyDraft, self_pair
from tests.support.toy_target import ToySizes
from tests.support.viewed_draft import ViewedDraft

LIMIT = 24
K = 4


def prompt_of(length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(length)
    return (0, *(int(token) for token in torch.randint(1, 48, (length - 1,), generator=generator)))


def perfect(limit: int) -> tuple[Target, dict[str, DrafterBuilder]]:
    target, draft = self_pair(seed=2, sizes=ToySizes(max_positions=limit))
    return target, {
        "chain": ChainBuilder(draft, K),
        "tree": TreeBuilder(draft, 2, K, 14),  # all candidates
        "static": StaticTreeBuilder(draft, (0, 0, 1, 2, 3, 5)),
    }


@pytest.mark.parametrize("name", ["chain", "tree", "static"])
def test_prompts_around_the_context_limit(name: str) -> None:
    """Prompts of limit - K - 1 .. limit - 1 tokens in one batch, with page sizes that the limit does not divide."""
    target, builders = perfect(LIMIT)
    lengths = range(LIMIT - K - 1, LIMIT)
    for page_size in (1, 5):
        engine = engine_of(target, builders[name], EngineOptions(max_batch_size=len(lengths), page_size=page_size))
        found = run(engine, [Request(prompt_of(length), 50) for length in lengths])
        for length, outcome in zip(lengths, found, strict=True):
            assert tuple(outcome.token_ids) == greedy(target, prompt_of(length), 50)
            assert len(outcome.token_ids) == LIMIT - length
            assert outcome.reason == "context"


def test_drafts_shrink_and_are_accepted_up_to_the_last_token() -> None:
    """Each round's draft leaves room for its bonus, so a perfect draft never proposes what cannot be emitted."""
    target, builders = perfect(LIMIT)
    recording = RecordingBuilder(builders["chain"])
    (outcome,) = run(engine_of(target, recording), [Request(prompt_of(10), 50)])
    for row in recording.proposed:
        assert row.draft_len == max(min(K, LIMIT - 1 - len(row.history)), 0)
    assert sum(outcome.accept_lengths) + 1 == LIMIT - 10


@pytest.mark.parametrize("limit", range(9, 16))
def test_a_draft_with_a_shorter_context_stops_drafting_and_the_text_goes_on(limit: int) -> None:
    """The first draft step at length L runs at index L of the draft: past its limit nothing may be proposed."""
    target, _ = self_pair(seed=2, sizes=ToySizes(max_positions=40))
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True, max_positions=limit)
    requests = [Request(prompt_of(length), 30) for length in (2, limit - 1, limit, limit + 1, 25)]
    for builder in (ChainBuilder(draft, K), TreeBuilder(draft, 2, 3, 6)):
        recording = RecordingBuilder(builder)
        found = run(engine_of(target, recording, EngineOptions(max_batch_size=3, page_size=4)), requests)
        for request, outcome in zip(requests, found, strict=True):
            assert tuple(outcome.token_ids) == greedy(target, request.prompt, 30)
        for row in recording.proposed:
            # The last pair that is run for a proposal of depth d stands at index length + d - 2.
            length = len(row.history) - 1
            assert row.draft_len == 0 or length + row.draft_len - 2 <= limit - 1
            assert row.draft_len <= max(limit + 1 - length, 0)
        assert {row.draft_len for row in recording.proposed} >= {0, 1}


class BoundTo(ViewedDraft):
    """A draft whose weights equal those of ``target``, as bound to it."""

    def __init__(self, inner: BoundDraft, target: Target) -> None:
        super().__init__(inner, MediaView.PLACEHOLDER)
        self._target = target

    @property
    def bound_to(self) -> LayerStackProvider:
        return self._target.stack


def test_a_perfect_draft_drafts_to_the_very_end_of_its_own_context() -> None:
    """What it may still propose is right: positions at its limit are not clamped ones."""
    sizes = ToySizes(max_positions=40)
    target, _ = self_pair(seed=2, sizes=sizes)
    _, equal = self_pair(seed=2, sizes=ToySizes(max_positions=16))
    recording = RecordingBuilder(ChainBuilder(BoundTo(equal, target), K))
    run(engine_of(target, recording), [Request(prompt_of(3), 30)])
    for row in recording.proposed:
        assert row.tokens[: row.draft_len] == greedy(target, row.history, row.draft_len)
    assert max(len(row.history) - 1 + row.draft_len for row in recording.proposed if row.draft_len) == 17


@pytest.mark.parametrize("caps", [(0, 1, 2, 3, None), (9, 0, 0, None, 1)])
def test_requests_want_draft_lengths_of_their_own(caps: Sequence[int | None]) -> None:
    target, builders = perfect(64)
    requests = [Request(prompt_of(4 + index), 20, draft_cap=cap) for index, cap in enumerate(caps)]
    for name, builder in builders.items():
        engine = engine_of(target, builder, EngineOptions(max_batch_size=5, page_size=4))
        depth = engine.draft_depth
        for request, outcome in zip(requests, run(engine, requests), strict=True):
            most = depth if request.draft_cap is None else min(request.draft_cap, depth)
            assert tuple(outcome.token_ids) == greedy(target, request.prompt, 20)
            # A dynamic tree may prune the path that a chain would take.
            assert name == "tree" or set(outcome.accept_lengths[:-1]) <= {most + 1}
            assert all(1 <= length <= most + 1 for length in outcome.accept_lengths)
