"""Hidden states are those of the sequence that came out, one row a position, whatever was drafted and rejected."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from outrider import EngineOptions, Prompt, RequestSettings
from tests.generation.variants import DRAFTING, PROMPTS, alone, builder, model
from tests.support.engines import model_of
from tests.support.pair import trained_pair

Mode = Literal["null", "last", "full"]
MODES: tuple[Mode, ...] = ("full", "null", "last", "full", "last")


@pytest.mark.parametrize(("batch", "in_flight"), [(1, 1), (4, 0)])
@pytest.mark.parametrize("name", DRAFTING)
def test_states_are_those_of_one_pass_over_the_sequence(name: str, batch: int, in_flight: int) -> None:
    """Full: all positions but the newest token's, whose state is not computed yet. Last: the newest of them."""
    prompts = [
        Prompt(text, RequestSettings(max_new_tokens=count, hidden_states=mode, temperature=heat, seed=2))
        for text, count, mode, heat in zip(PROMPTS, (17, 9, 12, 1, 17), MODES, (0.0, 0.0, 0.0, 0.0, 0.8), strict=True)
    ]
    for mode, done in zip(MODES, model(name, batch, in_flight).generate_batch(prompts).completions, strict=True):
        if mode == "null":
            assert done.hidden_states is None
            continue
        expected = alone(done.prompt_token_ids, done.token_ids).hidden[:-1]
        assert done.hidden_states is not None
        torch.testing.assert_close(
            done.hidden_states, expected if mode == "full" else expected[-1:], atol=2e-3, rtol=1e-3
        )


@pytest.mark.parametrize("budget", [1, 5, 64])
def test_a_prompt_that_is_cut_into_chunks_gives_all_of_its_states(budget: int) -> None:
    options = EngineOptions(2, page_size=4, max_length=128, max_prefill_tokens=budget)
    made = model_of(trained_pair().target, builder("chain"), options)
    for done in made.generate_batch(PROMPTS[:3], max_new_tokens=5, hidden_states="full").completions:
        expected = alone(done.prompt_token_ids, done.token_ids).hidden[:-1]
        assert done.hidden_states is not None
        torch.testing.assert_close(done.hidden_states, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("budget", [2, 5])
def test_states_are_those_of_prompts_that_are_cut_while_others_run(budget: int) -> None:
    """Each is given what it wants, whatever its neighbours in a pass want; with log-probabilities beside them."""
    options = EngineOptions(3, page_size=4, max_length=128, max_prefill_tokens=budget)
    made = model_of(trained_pair().target, builder("chain"), options)
    prompts = [
        Prompt(text, RequestSettings(max_new_tokens=6 + place, hidden_states=mode, logprobs=2 if place % 2 else None))
        for place, (text, mode) in enumerate(zip(PROMPTS * 2, MODES * 2, strict=True))
    ]
    for prompt, done in zip(prompts, made.generate_batch(prompts).completions, strict=True):
        expected = alone(done.prompt_token_ids, done.token_ids)
        assert prompt.settings is not None
        if prompt.settings.logprobs is not None:
            chosen = torch.tensor([each.chosen for each in done.logprobs])
            torch.testing.assert_close(chosen, expected.chosen, atol=2e-3, rtol=1e-3)
        mode = prompt.settings.hidden_states
        if mode == "null":
            assert done.hidden_states is None
            continue
        states = expected.hidden[:-1] if mode == "full" else expected.hidden[-2:-1]
        assert done.hidden_states is not None
        torch.testing.assert_close(done.hidden_states, states, atol=2e-3, rtol=1e-3)


def test_states_that_are_kept_are_not_written_to_again() -> None:
    first = model("dynamic tree").generate(PROMPTS[0], max_new_tokens=12, hidden_states="full").hidden_states
    assert first is not None
    kept = first.clone()
    model("dynamic tree").generate(PROMPTS[1], max_new_tokens=12, hidden_states="full")
    assert torch.equal(first, kept)
