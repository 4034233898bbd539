"""Seeded sampling gives plain decoding's tokens with any draft; other verifiers keep greedy rows, and faults apart."""

from __future__ import annotations

import random
from functools import cache

import pytest
from attrs import evolve

from outrider import EngineOptions, Prompt, RequestSettings, SpeculativeModel, registry
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder
from outrider.drafting.choosing import ProposalMode
from outrider.errors import NonFiniteLogitsError
from outrider.generation.drafters import DraftPlan
from outrider.generation.drafting import DraftingOptions
from outrider.interfaces import DrafterBuilder
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
    RequestSettings(max_new_tokens=15, temperature=t, top_p=p, seed=7) for t in (0.5, 1.0, 1.5) for p in (1.0, 0.9)
]
OTHERS = [
    RequestSettings(max_new_tokens=15, repetition_penalty=1.3),
    RequestSettings(
        max_new_tokens=15, temperature=0.8, top_k=20, min_p=0.05, presence_penalty=0.5, frequency_penalty=0.2
    ),
    RequestSettings(max_new_tokens=15, logit_bias={201: -5.0, 12: 2.0}, temperature=1.0, seed=3),
    RequestSettings(max_new_tokens=15, banned_token_ids=(201, 274)),
    RequestSettings(max_new_tokens=15, allowed_token_ids=tuple(range(200, 420)), temperature=0.7, seed=9),
    RequestSettings(max_new_tokens=15, min_new_tokens=12, eos_token_ids=tuple(range(195, 203)), temperature=1.0),
]
VERIFIERS = registry.names(registry.VERIFIERS)


def requests(settings: list[RequestSettings]) -> list[Prompt]:
    """Each of ``settings`` with a prompt."""
    return [Prompt(PROMPTS[number % 5], each) for number, each in enumerate(settings)]


def tokens(made: SpeculativeModel, prompts: list[Prompt]) -> Tokens:
    return [done.token_ids for done in made.generate_batch(prompts).completions]


@cache
def alone() -> Tokens:
    """What each of all the settings gives without drafting, one by one."""
    return tokens(model("plain", 1), requests(HEATS + OTHERS))


@pytest.mark.parametrize("name", [name for name in DRAFTING if name != "plain"])
def test_sampled_tokens_are_those_of_plain_decoding(name: str) -> None:
    """At any temperature, with penalties, bias and least lengths, in batches of any mixture."""
    assert tokens(model(name, 4), requests(HEATS + OTHERS)) == alone()
    assert len(set(alone())) == len(alone())


@pytest.mark.parametrize(("name", "batch", "in_flight"), [("plain", 8, 1), ("chain", 3, 1), ("dynamic tree", 2, 0)])
def test_neither_batch_nor_order_nor_a_host_that_runs_behind_changes_a_token(
    name: str, batch: int, in_flight: int
) -> None:
    wanted = requests(HEATS + OTHERS)
    order = random.Random(batch).sample(range(len(wanted)), len(wanted))
    found = tokens(model(name, batch, in_flight), [wanted[place] for place in order])
    assert found == [alone()[place] for place in order]


@pytest.mark.parametrize("mode", list(ProposalMode))
def test_exact_verification_takes_any_kind_of_proposal(mode: ProposalMode) -> None:
    wanted, expected = requests(HEATS), alone()[: len(HEATS)]
    draft = trained_pair().eagle3
    builders: list[DrafterBuilder] = [ChainBuilder(draft, 3, mode), StaticTreeBuilder(draft, (0, 0, 1, 2, 2), mode)]
    for drafter in builders:
        assert tokens(verified("exact", drafter), wanted) == expected


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name != "exact"])
def test_the_comparison_tells_tokens_of_another_draw(verifier: str) -> None:
    """What keeps the distribution at most does not pass for what keeps the tokens."""
    found = tokens(verified(verifier, ChainBuilder(trained_pair().eagle3, 3)), requests(HEATS))
    assert found != alone()[: len(HEATS)]


def test_other_seeds_give_other_texts_and_one_token_to_choose_from_is_greedy() -> None:
    made = model("chain", 8)
    base = RequestSettings(max_new_tokens=15, temperature=1.2)
    texts = tokens(made, [Prompt(PROMPTS[0], evolve(base, seed=seed)) for seed in range(8)])
    assert len(set(texts)) == 8
    one = RequestSettings(max_new_tokens=15, temperature=1.2, top_k=1, seed=5)
    expected = tokens(made, [Prompt(text, RequestSettings(max_new_tokens=15)) for text in PROMPTS])
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


SHAPES: dict[str, dict[str, object]] = {
    "chain": {"num_draft_tokens": 4},
    "static tree": {"tree": (0, 0, 1, 1, 2)},
    "dynamic tree": {"tree_width": 3, "tree_depth": 3},
    "ngram": {"drafter": "ngram"},
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_rows_beside_sampled_ones_are_exact_under_every_verifier(verifier: str, shape: str) -> None:
    if registry.verifier(verifier).verifier.chains_only and "tree" in shape:
        pytest.skip("chains only")
    plan = DraftPlan.of(DraftingOptions.of({**SHAPES[shape], "verifier": verifier}), has_draft=True, explicit=False)
    drafter = plan.builder(trained_pair().eagle3)
    greedy_ones = [Prompt(text, RequestSettings(max_new_tokens=15)) for text in PROMPTS[:3]]
    hot = RequestSettings(max_new_tokens=15, temperature=1.0)
    sampled = [Prompt(text, evolve(hot, seed=seed)) for seed, text in enumerate(PROMPTS[:3])]
    mixed = [each for both in zip(greedy_ones, sampled, strict=True) for each in both]
    result = verified(verifier, drafter).generate_batch(mixed)
    assert [done.token_ids for done in result.completions[::2]] == tokens(model("plain"), greedy_ones)
    assert all(len(done.token_ids) == 15 for done in result.completions[1::2])
    assert result.statistics.mean_acceptance_length > 1.0
    again = verified(verifier, drafter, batch=3).generate_batch(mixed[::-1])
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
