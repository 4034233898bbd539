"""Log-probabilities are the target's own, before any sampling setting, however a token was drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from outrider import Prompt, Request, RequestSettings
from tests.generation.variants import DRAFTING, PROMPTS, alone, codec, model

WANTED = (
    RequestSettings(max_new_tokens=18, logprobs=3),
    RequestSettings(max_new_tokens=11),
    RequestSettings(max_new_tokens=18, logprobs=0, temperature=0.9, top_p=0.8, seed=4),
    RequestSettings(max_new_tokens=14, logprobs=6, repetition_penalty=1.5, logit_bias={200: 3.0}),
    RequestSettings(max_new_tokens=1, logprobs=1),
)


@pytest.mark.parametrize(("batch", "in_flight"), [(1, 0), (4, 1)])
@pytest.mark.parametrize("name", DRAFTING)
def test_every_token_has_the_targets_log_probability_and_its_best(name: str, batch: int, in_flight: int) -> None:
    """Neighbours want other numbers of them, or none."""
    prompts = [Prompt(text, settings) for text, settings in zip(PROMPTS, WANTED, strict=True)]
    for prompt, done in zip(prompts, model(name, batch, in_flight).generate_batch(prompts).completions, strict=True):
        assert prompt.settings is not None
        count = prompt.settings.logprobs
        if count is None:
            assert done.logprobs == ()
            continue
        expected = alone(done.prompt_token_ids, done.token_ids)
        assert len(done.logprobs) == len(done.token_ids) == prompt.settings.max_new_tokens
        found = torch.tensor([entry.chosen for entry in done.logprobs])
        torch.testing.assert_close(found, expected.chosen, atol=1e-4, rtol=0)
        for place, entry in enumerate(done.logprobs):
            ids = [token for token, _ in entry.top]
            values = torch.tensor([value for _, value in entry.top])
            assert len(set(ids)) == count
            torch.testing.assert_close(values, expected.best(place, count), atol=1e-4, rtol=0)
            at_ids = expected.logprobs[expected.num_prompt - 1 + place, ids]
            torch.testing.assert_close(values, at_ids, atol=1e-4, rtol=0)


def test_asking_changes_no_token() -> None:
    for name in ("plain", "chain", "dynamic tree"):
        bare, asked = (model(name).generate(PROMPTS[0], max_new_tokens=24, logprobs=n) for n in (None, 2))
        assert bare.token_ids == asked.token_ids
        assert bare.accept_lengths == asked.accept_lengths
        assert asked.logprobs[0].top[0][0] == asked.token_ids[0]


def test_more_than_the_vocabulary_gives_all_of_it() -> None:
    done = model("chain").generate(PROMPTS[0], max_new_tokens=3, logprobs=10_000)
    for entry in done.logprobs:
        assert sorted(token for token, _ in entry.top) == list(range(4096))
        assert sum(torch.tensor([value for _, value in entry.top]).exp()) == pytest.approx(1.0, abs=1e-4)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    """Counts the operators that run within."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.counts[str(func).split(".")[1].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def operators(name: str, settings: RequestSettings) -> Counter[str]:
    """What one round of ``name`` runs for one such request."""
    engine = model(name, 1).engine
    prompt = tuple(codec().encode(PROMPTS[0]))
    engine.submit(Request(prompt, 40, settings.sampling(), wants=settings.wants()))
    engine.step()
    engine.step()
    counting = _Operators()
    with counting:
        engine.run_round()
    for _ in iter(lambda: engine.has_work, False):
        engine.step()
    return counting.counts


@pytest.mark.parametrize("name", ["plain", "chain", "static tree"])
def test_what_nobody_asks_for_costs_no_operator(name: str) -> None:
    """A greedy round has no pass over the vocabulary but the search for the best; each wish brings its own, and goes."""
    bare = operators(name, RequestSettings())
    over_the_vocabulary = {"log_softmax", "softmax", "sort", "exponential", "cumsum", "logsumexp"}
    assert set(bare) & over_the_vocabulary == set()
    assert operators(name, RequestSettings(logprobs=2))["log_softmax"] == 1
    hidden = operators(name, RequestSettings(hidden_states="full"))
    assert 0 < sum(hidden.values()) - sum(bare.values()) < 8
    assert sum(operators(name, RequestSettings(temperature=1.0, top_p=0.9)).values()) > sum(bare.values()) + 20
    assert operators(name, RequestSettings()) == bare
