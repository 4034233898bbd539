"""Goals, ratios and peers of the speed benchmarks."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence

import pytest
import torch
from attrs import frozen

from benchmarks._cases import greedy_cases
from benchmarks._hub import HubPeer
from benchmarks._outrider import outrider_contestant
from benchmarks._pair import load_pair
from benchmarks._process import load_memory
from benchmarks._race import Answer, Result, race
from benchmarks._vllm import vllm_contestant
from benchmarks.cpu import goals, speed_table


def result(name: str, speed: float, batch: int = 1) -> Result:
    """One prompt, 64 tokens, one group of one repetition."""
    return Result(name, batch, Answer((tuple(range(64)),), num_passes=64), ((64 / speed,),))


def test_goals_compare_the_best_chain() -> None:
    results = [
        result("transformers", 60),
        result("drafting off", 100),
        result("chain 3", 190),
        result("chain 5", 170),
        result("tree 4x5, 15 tokens", 500),
        result("EAGLE-1 chain 4", 600),
    ]
    over_hub, over_off = goals(results, 1)
    assert "chain 3" in over_hub.text
    assert over_hub.found == pytest.approx(190 / 60)
    assert over_off.found == pytest.approx(1.9)
    assert [(goal.wanted, goal.reached) for goal in (over_hub, over_off)] == [(3.0, True), (1.25, True)]
    (batched,) = goals([result("transformers", 100, 8), result("chain 2", 199, 8)], 8)
    assert not batched.reached
    assert str(batched).endswith("wanted 2: MISSED")


def test_ratios_are_over_the_first_of_the_table() -> None:
    rows = speed_table([result("transformers", 50), result("chain 1", 125)]).rows
    assert [row[:3] for row in rows] == [("transformers", "50", "1.00"), ("chain 1", "125", "2.50")]


def test_everybody_gives_the_reference_and_counts_the_passes_of_the_target() -> None:
    pair = load_pair(torch.device("cpu"))
    hub = HubPeer(torch.device("cpu"), torch.float32)
    cases = greedy_cases()[:2]
    field = [hub.plain(), outrider_contestant("off", pair, None), outrider_contestant("chain", pair, pair.chain(5))]
    for batch in (1, 2):
        peer, off, chain = race(field, cases, batch, repeats=1)
        # A prefill and one pass for every further token; prompts of a batch share them.
        assert peer.answer.num_passes == off.answer.num_passes == 64 * len(cases) // batch
        assert peer.acceptance_length == off.acceptance_length == 1.0
        assert chain.acceptance_length > 2
        assert chain.answer.num_passes < off.answer.num_passes
    (lookup,) = race([hub.prompt_lookup(5)], cases, 1, repeats=1)
    assert 1.0 < lookup.acceptance_length <= 6.0


@frozen
class FakeOutput:
    token_ids: Sequence[int]


@frozen
class FakeRequest:
    outputs: Sequence[FakeOutput]


def test_vllm_is_asked_for_the_same_text_and_its_eagle3(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    answers = {case.prompt: case.continuation for case in greedy_cases()}

    class FakeLlm:
        def __init__(self, **settings: object) -> None:
            seen.update(settings)

        def generate(
            self, prompts: Sequence[Mapping[str, Sequence[int]]], sampling_params: object, *, use_tqdm: bool
        ) -> list[FakeRequest]:
            assert (sampling_params, use_tqdm) == ({"temperature": 0.0, "max_tokens": 64}, False)
            return [FakeRequest([FakeOutput(list(answers[tuple(one["prompt_token_ids"])]))]) for one in prompts]

    module = types.ModuleType("vllm")
    monkeypatch.setattr(module, "LLM", FakeLlm, raising=False)
    monkeypatch.setattr(module, "SamplingParams", dict, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    (found,) = race([vllm_contestant(3)], greedy_cases(), 8, repeats=1)
    assert found.answer.num_tokens == 8 * 64
    speculative = seen["speculative_config"]
    assert isinstance(speculative, dict)
    assert (speculative["method"], speculative["num_speculative_tokens"]) == ("eagle3", 3)


def test_loading_takes_little_more_memory_than_the_weights() -> None:
    memory = load_memory()
    if memory is None:
        pytest.skip("resident memory is read from /proc, which is Linux's")
    # Target 6.95M, drafts 1.2M and 0.9M parameters or so, four bytes each.
    assert 30e6 < memory.weight_bytes < 45e6
    assert 0.9 * memory.weight_bytes < memory.again_bytes < 2 * memory.weight_bytes
