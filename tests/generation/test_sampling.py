"""Seeded sampling gives plain decoding's tokens with any draft; other verifiers keep greedy rows, and faults apart."""

from __future__ import annotations

import random

import pytest
from attrs import evolve

import outrider
from outrider import EngineOptions, Prompt, RequestSettings, SpeculativeModel, registry
from outrider.drafting.builders import ChainBuilder, DrafterBuilder, StaticTreeBuilder
from outrider.drafting.choosing import ProposalMode
from outrider.errors import NonFiniteLogitsError
from outrider.generation.drafting import DraftingKeywords
from outrider.types import HiddenTap
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.generation.variants import DRAFTING, PROMPTS, model
from tests.support.misbehaving import poisoned_target
from tests.support.pair import trained_pair
from tests.support.reference import greedy
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import toy_target

Tokens = list[tuple[int, ...]]
HEATS = [
    RequestSettings(max_new_tokens=20, temperature=t, top_p=p, seed=7) for t in (0.5, 1.0, 1.5) for p in (1.0, 0.9)
]
OTHERS = [
    RequestSettings(max_new_tokens=20, repetition_penalty=1.3),
    RequestSettings(
        max_new_tokens=20, temperature=0.8, top_k=20, min_p=0.05, presence_penalty=0.5, frequency_penalty=0.2
    ),
    RequestSettings(max_new_tokens=20, logit_bias={201: -5.0, 12: 2.0}, temperature=1.0, seed=3),
    RequestSettings(max_new_tokens=20, banned_token_ids=(201, 274)),
    RequestSettings(max_new_tokens=20, allowed_token_ids=tuple(range(200, 420)), temperature=0.7, seed=9),
    RequestSettings(max_new_tokens=20, min_new_tokens=12, eos_token_ids=tuple(range(195, 203)), temperature=1.0),
]
VERIFIERS = registry.names(registry.VERIFIERS)


def requests(settings: list[RequestSettings]) -> list[Prompt]:
    """Each of ``settings`` with a prompt."""
    return [Prompt(PROMPTS[number % 5], each) for number, each in enumerate(settings)]


def tokens(made: SpeculativeModel, prompts: list[Prompt]) -> Tokens:
    return [done.token_ids for done in made.generate_batch(prompts).completions]


@pytest.mark.parametrize("name", [name for name in DRAFTING if name != "plain"])
def test_sampled_tokens_are_those_of_plain_decoding(name: str) -> None:
    """At any temperature, with penalties, bias and least lengths, in batches of any mixture."""
    wanted = requests(HEATS + OTHERS)
    expected = tokens(model("plain", 1), wanted)
    assert tokens(model(name, 4), wanted) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("name", ["plain", "chain", "dynamic tree"])
def test_neither_batch_nor_order_nor_a_host_that_runs_behind_changes_a_token(name: str) -> None:
    wanted = requests(HEATS + OTHERS)
    expected = tokens(model(name, 1), wanted)
    for batch, in_flight, seed in ((2, 0, 0), (3, 1, 1), (8, 0, 2)):
        order = random.Random(seed).sample(range(len(wanted)), len(wanted))
        found = tokens(model(name, batch, in_flight), [wanted[place] for place in order])
        assert found == [expected[place] for place in order]


@pytest.mark.parametrize("mode", list(ProposalMode))
def test_exact_verification_takes_any_kind_of_proposal(mode: ProposalMode) -> None:
    wanted = requests(HEATS)
    expected = tokens(model("plain"), wanted)
    draft = trained_pair().eagle3
    builders: list[DrafterBuilder] = [ChainBuilder(draft, 3, mode), StaticTreeBuilder(draft, (0, 0, 1, 2, 2), mode)]
    for drafter in builders:
        assert tokens(verified("exact", drafter), wanted) == expected


def test_other_seeds_give_other_texts_and_one_token_to_choose_from_is_greedy() -> None:
    made = model("chain", 8)
    base = RequestSettings(max_new_tokens=20, temperature=1.2)
    texts = tokens(made, [Prompt(PROMPTS[0], evolve(base, seed=seed)) for seed in range(8)])
    assert len(set(texts)) == 8
    one = RequestSettings(max_new_tokens=20, temperature=1.2, top_k=1, seed=5)
    expected = tokens(made, [Prompt(text, RequestSettings(max_new_tokens=20)) for text in PROMPTS])
    assert tokens(made, [Prompt(text, one) for text in PROMPTS]) == expected


def verified(verifier: str, drafter: DrafterBuilder | None, batch: int = 4) -> SpeculativeModel:
    return SpeculativeModel(
        trained_pair().target,
        drafter,
        attention=SdpaBackend(),
        runner=EagerRunner,
        verifier=registry.verifier(verifier).verifier,
        options=EngineOptions(batch, max_length=192),
    )


SHAPES: dict[str, DraftingKeywords] = {
    "chain": {"num_draft_tokens": 4},
    "static tree": {"tree": (0, 0, 1, 1, 2)},
    "dynamic tree": {"tree_width": 3, "tree_depth": 3},
    "ngram": {"drafter": "ngram"},
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_rows_beside_sampled_ones_are_exact_under_every_verifier(verifier: str, shape: str) -> None:
    if registry.verifier(verifier).chains_only and "tree" in shape:
        pytest.skip("chains only")
    greedy_ones = [Prompt(text, RequestSettings(max_new_tokens=20)) for text in PROMPTS]
    sampled = [
        Prompt(text, RequestSettings(max_new_tokens=20, temperature=1.0, seed=s)) for s, text in enumerate(PROMPTS)
    ]
    mixed = [each for both in zip(greedy_ones, sampled, strict=True) for each in both]
    keywords: DraftingKeywords = {**SHAPES[shape], "verifier": verifier}
    options = EngineOptions(4, max_length=192)
    made = outrider.load(options=options, **keywords)
    result = made.generate_batch(mixed)
    assert [done.token_ids for done in result.completions[::2]] == tokens(model("plain"), greedy_ones)
    assert all(len(done.token_ids) == 20 for done in result.completions[1::2])
    assert result.statistics.mean_acceptance_length > 1.0
    again = outrider.load(options=evolve(options, max_batch_size=3), **keywords).generate_batch(mixed[::-1])
    assert [done.token_ids for done in again.completions[::-1]] == [done.token_ids for done in result.completions]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_row_of_nan_fails_alone_under_every_verifier(verifier: str, heat: float) -> None:
    sound, doomed, prompts = toy_target(), (0, 25, 27, 3), [(0, 9, 7, 40), (0, 26, 20, 31), (0, 39, 10, 20)]
    late = greedy(sound, doomed, 2)[1]
    expected = [greedy(sound, prompt, 12) for prompt in prompts]
    assert all(late not in (*prompt, *text) for prompt, text in zip(prompts, expected, strict=True))
    target = poisoned_target(late)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    made = SpeculativeModel(
        target,
        ChainBuilder(draft, 3, ProposalMode(registry.verifier(verifier).proposal)),
        attention=SdpaBackend(),
        runner=EagerRunner,
        verifier=registry.verifier(verifier).verifier,
        options=EngineOptions(4, page_size=4),
    )
    # Banned, so that their drafts do not hold it either: within one row NaN may spread to the nodes before it.
    hot = RequestSettings(max_new_tokens=12, temperature=heat, seed=1, banned_token_ids=(late,))
    wanted = [Prompt(doomed, RequestSettings(max_new_tokens=12)), *(Prompt(prompt, hot) for prompt in prompts)]
    failed, *others = made.generate_batch(wanted, raise_errors=False).completions
    assert isinstance(failed.error, NonFiniteLogitsError)
    assert failed.token_ids == greedy(sound, doomed, 2)
    alone = made.generate_batch(wanted[1:]).completions
    assert all(done.error is None and len(done.token_ids) == 12 for done in others)
    assert [done.token_ids for done in others] == [done.token_ids for done in alone]
    if heat == 0:
        assert [done.token_ids for done in others] == expected
