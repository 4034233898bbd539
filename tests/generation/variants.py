"""The trained pair behind every way to draft, and what its target alone gives, in one pass without cache or batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import torch
from attrs import frozen
from torch import Tensor

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.generation.model import SpeculativeModel
from outrider.interfaces import DrafterBuilder, LoadOptions, TextCodec
from outrider.loop.build import EngineOptions
from outrider.types import StackInputs
from tests.support.engines import model_of
from tests.support.pair import trained_pair
from tests.support.reference import causal_attention
from tests.support.toy_target import CPU

__all__ = ["DRAFTING", "PROMPTS", "Alone", "alone", "builder", "codec", "model"]

PROMPTS = ("def main():", "import numpy as np\n", "class Point:\n    def", "for i in range(10):", "x = [")
DRAFTING = ("plain", "chain", "dynamic tree", "static tree", "eagle1", "standalone", "ngram")
"""``standalone`` is the target as its own draft: every drafted token is right, so rounds are as long as they can be."""


@cache
def builder(name: str) -> DrafterBuilder | None:
    pair = trained_pair()
    match name:
        case "plain":
            return None
        case "chain":
            return ChainBuilder(pair.eagle3, 4)
        case "dynamic tree":
            return TreeBuilder(pair.eagle3, 3, 4, 9)
        case "static tree":
            return StaticTreeBuilder(pair.eagle3, (0, 0, 1, 1, 2, 3, 6))
        case "eagle1":
            return ChainBuilder(pair.eagle1, 3)
        case "standalone":
            directory = registry.pair("tiny").target
            options = LoadOptions(CPU, torch.float32)
            return ChainBuilder(
                registry.load_draft(Checkpoint(directory), options, loader="standalone").bind(pair.target), 4
            )
        case "ngram":
            return NgramBuilder(4)
        case _:
            raise AssertionError(name)


@cache
def model(name: str, batch: int = 4, in_flight: int = 0) -> SpeculativeModel:
    """The pair drafting as ``name`` of `DRAFTING`; shared by all tests of a process."""
    options = EngineOptions(batch, page_size=8, max_length=192, rounds_in_flight=in_flight)
    return model_of(trained_pair().target, builder(name), options)


def codec() -> TextCodec:
    """The target's."""
    found = trained_pair().target.codec
    assert found is not None
    return found


@frozen(eq=False)
class Alone:
    """One pass over a finished sequence. ``hidden [T, H]`` after the final norm, ``logprobs [T, V]`` of the next token."""

    num_prompt: int
    token_ids: tuple[int, ...]
    hidden: Tensor
    logprobs: Tensor

    @property
    def chosen(self) -> Tensor:
        """Log-probability of each generated token."""
        rows = self.logprobs[self.num_prompt - 1 : -1]
        return rows.gather(1, torch.tensor(self.token_ids)[:, None]).squeeze(1)

    def best(self, place: int, count: int) -> Tensor:
        """The ``count`` best log-probabilities for generated token ``place``."""
        return self.logprobs[self.num_prompt - 1 + place].topk(count).values


def alone(prompt: Sequence[int], token_ids: Sequence[int]) -> Alone:
    """What the target itself thinks of a prompt and the tokens after it."""
    stack = trained_pair().target.stack
    ids = torch.tensor([*prompt, *token_ids])
    inputs = StackInputs(torch.arange(len(ids)), partial(causal_attention, stack.spec.layers))
    with torch.inference_mode():
        hidden = stack.run_layers(stack.embed(ids), inputs).hidden
        logprobs = stack.logits(hidden).log_softmax(dim=-1)
    return Alone(len(prompt), tuple(token_ids), hidden, logprobs)
