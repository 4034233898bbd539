"""A standalone draft in the loop: one that equals its target is always right, any other changes no token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from attrs import evolve

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import BoundDraft, DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.types import DraftSpec, Request, RowAlignment, SamplingParams
from outrider_adapters.standalone import BoundStandalone, StandaloneDraft
from tests.adapters.llama.reference import tokens
from tests.adapters.standalone.samples import random_model
from tests.backends.device_only import device_only
from tests.cases_data import greedy_cases
from tests.support.engines import Outcome, engine_of, run
from tests.support.pair import trained_pair

K = 3
SAMPLING = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0, top_p=0.9)}


def builders(draft: BoundDraft) -> dict[str, DrafterBuilder]:
    """Drafters that hold the path of the most probable tokens, whatever they are, down to their full depth."""
    return {
        "chain": ChainBuilder(draft, K),
        "tree": TreeBuilder(draft, 2, 2, 6),
        "static tree": StaticTreeBuilder(draft, (0, 0, 1, 2, 3, 4)),
    }


def sizes(batch: int, page_size: int, prefill: int) -> EngineOptions:
    return EngineOptions(max_batch_size=batch, page_size=page_size, max_prefill_tokens=prefill)


def requests_of(prompts: Sequence[Sequence[int]], params: SamplingParams, count: int = 21) -> list[Request]:
    return [Request(tuple(prompt), count, evolve(params, seed=seed)) for seed, prompt in enumerate(prompts)]


def four_requests(params: str) -> list[Request]:
    return requests_of([case.prompt for case in greedy_cases()[:4]], SAMPLING[params])


@cache
def plainly(params: str) -> list[list[int]]:
    """What the target alone says to them."""
    return [outcome.token_ids for outcome in run(engine_of(trained_pair().target), four_requests(params))]


def all_accepted(outcomes: list[Outcome], depth: int = K) -> bool:
    """Whether every round accepted a whole path of its draft, but for the last, which the end may have made shorter."""
    return all(length == depth + 1 for outcome in outcomes for length in outcome.accept_lengths[:-1])


DEPTHS = {"chain": K, "tree": 2, "static tree": K}
PIECES = {"whole": sizes(4, 16, 8192), "pieces of 7": sizes(3, 5, 7), "pieces of 1": sizes(1, 1, 1)}
"""Prompts in one piece, and cut in pieces, also right after the first token."""

EVERY_PAIR = [
    (which, pieces, tuple(SAMPLING)[(row + column) % 2])
    for row, which in enumerate(DEPTHS)
    for column, pieces in enumerate(PIECES)
]
"""Every drafter with prompts cut in every way; greedy and sampled by turns, so that each meets all of either."""


@pytest.mark.parametrize(("which", "pieces", "params"), EVERY_PAIR)
def test_the_target_as_its_own_draft_is_always_right(which: str, pieces: str, params: str) -> None:
    """Only if it has read the whole sequence, the first token and the root included, each at its place.

    Sampled as well: a coupled draft of equal distribution takes the very tokens that the target takes.
    """
    target = trained_pair().target
    builder = builders(StandaloneDraft(target).bind(target))[which]
    found = run(engine_of(target, builder, PIECES[pieces]), four_requests(params))
    assert [outcome.token_ids for outcome in found] == plainly(params)
    assert all_accepted(found, DEPTHS[which])


class Forgetful(BoundStandalone):
    """The same draft, wrongly declared: it would read pairs, and so never see the first token."""

    @property
    def spec(self) -> DraftSpec:
        return evolve(super().spec, alignment=RowAlignment.SHIFTED)


def test_a_draft_that_misses_the_first_token_is_found_out() -> None:
    target = trained_pair().target
    draft = Forgetful(StandaloneDraft(target).spec, target.stack, target.stack, None)
    found = run(engine_of(target, ChainBuilder(draft, K)), four_requests("greedy"))
    assert [outcome.token_ids for outcome in found] == plainly("greedy")
    assert not all_accepted(found)


def test_rope_that_depends_on_the_length_is_followed(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    target = random_model(tmp_path, rope_parameters=rope, max_position_embeddings=24)
    draft = StandaloneDraft(target).bind(target)
    assert draft.spec.needs_lengths
    requests = [Request(tuple(tokens(size, size)), 30, eos_ids=()) for size in (1, 20, 30)]
    found = run(engine_of(target, ChainBuilder(draft, K), sizes(3, 4, 8192)), requests)
    assert [outcome.token_ids for outcome in found] == [
        outcome.token_ids for outcome in run(engine_of(target), requests)
    ]
    assert all_accepted(found)


@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
@pytest.mark.parametrize("hot_tokens", [None, (5, 40, 3, 7, 12, 60, 61, 62, 3)], ids=["whole head", "hot tokens"])
def test_another_model_as_the_draft_changes_no_token(
    params: SamplingParams, hot_tokens: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """A draft of another family, width, depth, dtype and a shorter context; requests of every kind in one batch."""
    target = random_model(tmp_path / "target")
    model = random_model(tmp_path / "draft", "qwen2", hidden_size=24, num_hidden_layers=1, max_position_embeddings=40)
    draft = StandaloneDraft(model, hot_tokens).bind(target)
    requests = requests_of([tokens(size, size) for size in (1, 2, 9, 30, 39, 41, 60)], params, count=30)
    plain = run(engine_of(target), requests)
    whole, cut = sizes(7, 16, 8192), sizes(2, 3, 5)
    for which, options in (("chain", whole), ("tree", cut), ("static tree", whole), ("chain", cut)):
        found = run(engine_of(target, builders(draft)[which], options), requests)
        assert [outcome.token_ids for outcome in found] == [outcome.token_ids for outcome in plain]


def accepted_up_to(target: Target, draft: BoundDraft, prompt: int, count: int) -> list[int]:
    (outcome,) = run(engine_of(target, ChainBuilder(draft, K)), [Request(tuple(tokens(prompt)), count, eos_ids=())])
    return outcome.accept_lengths


@pytest.mark.parametrize("limit", [16, 17, 18, 19])
def test_it_drafts_up_to_the_end_of_its_own_context(limit: int, tmp_path: Path) -> None:
    """Its last row stands at limit - 1; the token that it gives there is the last that can be drafted."""
    target = random_model(tmp_path)
    bound = StandaloneDraft(target).bind(target)

    class Short(BoundStandalone):
        @property
        def spec(self) -> DraftSpec:
            return evolve(super().spec, max_positions=limit)

    prompt = 10
    lengths = accepted_up_to(target, Short(bound.spec, target.stack, target.stack, None), prompt, 24)
    expected: list[int] = []
    root = prompt
    while root < prompt + 23:
        drafted = min(K, max(limit - root, 0), target.stack.spec.max_positions - 2 - root)
        expected.append(drafted + 1)
        root += drafted + 1
    assert lengths == expected


def test_a_round_asks_nothing_of_the_host() -> None:
    target = trained_pair().target
    engine = engine_of(target, ChainBuilder(StandaloneDraft(target).bind(target), K), EngineOptions(rounds_in_flight=1))
    engine.submit(Request(greedy_cases()[0].prompt, 30))
    engine.step()
    with torch.inference_mode(), device_only():
        engine.run_round()
    assert engine.read()
