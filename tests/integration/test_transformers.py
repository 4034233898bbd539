"""The trained pair against transformers' own greedy generation, on prompts that no case holds."""

from __future__ import annotations

from typing import Protocol, cast

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder, ModelPair
from outrider.loop.build import EngineOptions
from outrider.types.request import Request
from tests.cases_data import greedy_cases
from tests.support.engines import engine_of, run
from tests.support.pair import trained_pair

COUNT = 24


class Generates(Protocol):
    """What is used of transformers' model, whose own annotations are partial."""

    def generate(
        self, input_ids: Tensor, *, attention_mask: Tensor, do_sample: bool, max_new_tokens: int
    ) -> Tensor: ...


def more_prompts() -> list[tuple[int, ...]]:
    """Pieces of text from within the cases, one token, special tokens only, and tokens drawn at random."""
    texts = [case.prompt + case.token_ids for case in greedy_cases()]
    pieces = [text[start : start + 3 + 5 * place] for place, text in enumerate(texts[:6]) for start in (7, 20)]
    generator = torch.Generator().manual_seed(0)
    drawn = [int(token) for token in torch.randint(3, 4096, (40,), generator=generator)]
    return [*pieces, (1,), (1, 2, 1), (267,), tuple(drawn)]


@pytest.fixture(scope="module")
def answers(tiny_pair: ModelPair) -> list[tuple[int, ...]]:
    """What transformers generates."""
    loaded = LlamaForCausalLM.from_pretrained(tiny_pair.target, dtype=torch.float32)  # pyright: ignore[reportUnknownMemberType] - transformers leaves it unannotated
    model = cast("Generates", loaded)
    found: list[tuple[int, ...]] = []
    with torch.inference_mode():
        for prompt in more_prompts():
            ids = torch.tensor([prompt])
            # All ones: it would take a padding id within a prompt for padding.
            mask = torch.ones_like(ids)
            text = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=COUNT)[0]
            found.append(tuple(int(token) for token in text[len(prompt) :]))
    return found


@pytest.mark.parametrize("name", ["plain", "chain", "tree", "eagle 1"])
def test_greedy_generation_is_that_of_transformers(name: str, answers: list[tuple[int, ...]]) -> None:
    pair = trained_pair()
    builders: dict[str, DrafterBuilder | None] = {
        "plain": None,
        "chain": ChainBuilder(pair.eagle3, 4),
        "tree": TreeBuilder(pair.eagle3, 4, 4, 11),
        "eagle 1": TreeBuilder(pair.eagle1, 3, 3, 8),
    }
    engine = engine_of(pair.target, builders[name], EngineOptions(8, max_length=256))
    found = run(engine, [Request(prompt, COUNT) for prompt in more_prompts()])
    assert [tuple(outcome.token_ids) for outcome in found] == answers
