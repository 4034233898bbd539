"""The trained drafts on their target: acceptance lengths that slow, independent implementations found.

They come out right only if the taps, their convention, the shift by one, d2t and the draft's own numerics all do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

import pytest
import torch
from attrs import evolve
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.checkpoint import Checkpoint, load_hot_tokens
from outrider.interfaces import BoundDraft, LoadOptions, ModelPair, Target
from outrider.types import AttentionSpec, DraftOverrides, HiddenTap, ModelSpec, StackInputs, TapConvention
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from tests.adapters.eagle.reference import ReferenceAttention
from tests.adapters.eagle.targets import CPU, EndsOnlyStack, TwoTensors

CASES = Path(__file__).resolve().parents[2] / "cases"
OPTIONS = LoadOptions(CPU, torch.float32)
NUM_LAYERS, EOS = 8, 0


class _Weight(Protocol):
    weight: Tensor


class _Output(Protocol):
    hidden_states: tuple[Tensor, ...]
    logits: Tensor


class _Llama(Protocol):
    """The part of transformers' model that is used; its own annotations are partial."""

    def __call__(self, input_ids: Tensor, output_hidden_states: bool, use_cache: bool) -> _Output: ...

    def eval(self) -> _Llama: ...

    def get_input_embeddings(self) -> _Weight: ...


@cache
def _llama(directory: Path) -> _Llama:
    loaded: object = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportUnknownMemberType] - partly typed
        directory, dtype=torch.float32
    )
    return cast("_Llama", loaded).eval()


class CachelessTarget:
    """transformers' Llama, run over the whole sequence each time."""

    def __init__(self, directory: Path) -> None:
        self._model = _llama(directory)
        weight = self._model.get_input_embeddings().weight.detach()
        attention = AttentionSpec(4, 2, 64, 64**-0.5)
        spec = ModelSpec("tiny-llama", 256, 4096, (attention,) * NUM_LAYERS, 2048, torch.float32, CPU)
        weights = TwoTensors(weight, weight)
        self.target = Target(EndsOnlyStack(spec, weights), weights)

    def run(self, tokens: Sequence[int], taps: Sequence[HiddenTap]) -> tuple[Tensor, list[int]]:
        """Features of the taps ``[T, A·H]``, and the target's choice after every token."""
        with torch.inference_mode():
            output = self._model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        # transformers gives N + 1 states, the last after the final norm; so boundary N before it is not among them.
        states = [output.hidden_states[NUM_LAYERS if tap.boundary is None else tap.boundary][0] for tap in taps]
        return torch.cat(states, dim=-1), [int(token) for token in output.logits[0].argmax(dim=-1)]


def propose(draft: BoundDraft, tokens: Sequence[int], features: Tensor, length: int) -> list[int]:
    """A greedy chain after ``tokens``, whose last is the root; ``features`` belong to all before it."""
    attend = ReferenceAttention(draft.spec.layers[0].scale)
    num_pairs = len(tokens) - 1
    with torch.inference_mode():
        embeds = draft.embed(torch.tensor(tokens[1:]))
        out = draft.extend(embeds, features[:num_pairs], StackInputs(torch.arange(num_pairs), attend))
        chain: list[int] = []
        for depth in range(length):
            token = draft.spec.vocab.to_target(draft.logits(out.hidden[-1:]).argmax(dim=-1))
            chain.append(int(token))
            assert out.state is not None
            inputs = StackInputs(torch.tensor([num_pairs + depth]), attend)
            out = draft.step(draft.embed(token), out.state[-1:], inputs)
    return chain


def acceptance_lengths(
    draft: BoundDraft, target: CachelessTarget, prompt: Sequence[int], expected: Sequence[int], length: int
) -> list[int]:
    """Tokens per target pass, the bonus included, until the continuation ``expected`` is complete."""
    tokens, lengths = [*prompt, expected[0]], list[int]()
    goal = len(prompt) + len(expected)
    features, _ = target.run(tokens, draft.spec.taps)
    while len(tokens) < goal:
        chain = propose(draft, tokens, features, length)
        features, choices = target.run([*tokens, *chain], draft.spec.taps)
        accepted = 0
        while accepted < length and choices[len(tokens) - 1 + accepted] == chain[accepted]:
            accepted += 1
        bonus = choices[len(tokens) - 1 + accepted]
        tokens += [*chain[:accepted], bonus]
        lengths.append(accepted + 1)
    assert tokens[len(prompt) : goal] == list(expected), "speculation changed the target's own continuation"
    return lengths


def _cases() -> list[tuple[list[int], list[int]]]:
    lines = (CASES / "greedy.jsonl").read_text().splitlines()
    records = [cast("Mapping[str, list[int]]", json.loads(line)) for line in lines]
    return [(record["prompt_token_ids"], record["token_ids"]) for record in records]


def _lengths(name: str) -> tuple[int, list[list[int]]]:
    loaded = cast("Mapping[str, object]", json.loads((CASES / name).read_text()))
    return cast("int", loaded["chain"]), cast("list[list[int]]", loaded["accept_lengths"])


@pytest.fixture(scope="module")
def target(tiny_pair: ModelPair) -> CachelessTarget:
    return CachelessTarget(tiny_pair.target)


@pytest.mark.parametrize("index", [0, 1])
def test_eagle3_accepts_what_was_found_round_by_round(
    index: int, tiny_pair: ModelPair, target: CachelessTarget
) -> None:
    draft = Eagle3Loader().load(Checkpoint(tiny_pair.drafts[0]), OPTIONS).bind(target.target)
    chain, lengths = _lengths("eagle3-chain5.json")
    prompt, continuation = _cases()[index]
    assert acceptance_lengths(draft, target, prompt, continuation, chain) == lengths[index]


@pytest.mark.parametrize("index", [0, 1])
def test_eagle1_accepts_what_was_found_round_by_round(
    index: int, tiny_pair: ModelPair, target: CachelessTarget
) -> None:
    draft = EagleLoader().load(Checkpoint(tiny_pair.drafts[1]), OPTIONS).bind(target.target)
    chain, lengths = _lengths("eagle1-chain4.json")
    prompt, continuation = _cases()[index]
    assert acceptance_lengths(draft, target, prompt, continuation, chain) == lengths[index]


def _eagle3_lengths(directory: Path, target: CachelessTarget, overrides: DraftOverrides) -> list[int]:
    options = evolve(OPTIONS, overrides=overrides)
    draft = Eagle3Loader().load(Checkpoint(directory), options).bind(target.target)
    prompt, continuation = _cases()[0]
    return acceptance_lengths(draft, target, prompt, continuation, 5)


def test_silent_config_finds_the_trained_taps(tiny_pair: ModelPair, target: CachelessTarget, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tiny_pair.drafts[0] / "model.safetensors")
    config = cast("dict[str, object]", json.loads((tiny_pair.drafts[0] / "config.json").read_text()))
    (tmp_path / "config.json").write_text(json.dumps({**config, "eagle_config": None, "rope_theta": None}))
    expected = _lengths("eagle3-chain5.json")[1][0]
    assert _eagle3_lengths(tmp_path, target, DraftOverrides()) == expected


WRONG = {
    "convention": DraftOverrides(tap_convention=TapConvention.LAYER_OUTPUT),
    "order": DraftOverrides(taps=(HiddenTap(5), HiddenTap(4), HiddenTap(2))),
    "one tap for all": DraftOverrides(taps=(HiddenTap(0),) * 3),
}


@pytest.mark.parametrize("overrides", WRONG.values(), ids=WRONG.keys())
def test_wrong_taps_cost_acceptance(overrides: DraftOverrides, tiny_pair: ModelPair, target: CachelessTarget) -> None:
    rounds = _eagle3_lengths(tiny_pair.drafts[0], target, overrides)
    assert len(rounds) > len(_lengths("eagle3-chain5.json")[1][0])


def test_hot_tokens_keep_the_rows_of_the_targets_head(tiny_pair: ModelPair, target: CachelessTarget) -> None:
    hot = load_hot_tokens(tiny_pair.drafts[1] / "hot_tokens.json")
    checkpoint, loader = Checkpoint(tiny_pair.drafts[1]), EagleLoader()
    whole = loader.load(checkpoint, OPTIONS).bind(target.target)
    sliced = loader.load(checkpoint, evolve(OPTIONS, overrides=DraftOverrides(hot_tokens=hot))).bind(target.target)
    rows = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    assert (sliced.spec.vocab.size, sliced.spec.vocab.target_size) == (1536, 4096)
    ids = torch.tensor(hot)
    torch.testing.assert_close(sliced.logits(rows), whole.logits(rows)[:, ids])
    assert torch.equal(sliced.spec.vocab.to_target(torch.arange(1536)), ids)


def test_pair_is_described(tiny_pair: ModelPair) -> None:
    third = Eagle3Loader().describe(Checkpoint(tiny_pair.drafts[0]))
    first = EagleLoader().describe(Checkpoint(tiny_pair.drafts[1]))
    assert (third.problems, first.problems) == ((), ())
    facts = dict(third.facts)
    assert facts["taps"] == "boundary 2, boundary 4, boundary 5"
    assert facts["fc"] == "768 (3 taps x 256) to 256"
    assert facts["vocabulary"] == "1536 of 4096 ids, mapped by d2t"
    assert (facts["embedding"], facts["head"]) == ("from the target", "its own")
    assert "theta 10000" in facts["rope"]
    assert any("convention boundary" in note for note in third.notes)
    facts = dict(first.facts)
    assert facts["taps"] == "final_norm"
    assert facts["fc"] == "512 (embedding + feature) to 256, with bias"
    assert (facts["vocabulary"], facts["head"]) == ("full, 4096 ids", "from the target")
    assert any("hot_tokens.json" in note for note in first.notes)
