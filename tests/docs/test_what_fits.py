"""What docs/writing-an-adapter.md says of models that fit the seam, and of one that does not, is tried here."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional
from attrs import evolve
from torch import Tensor

import outrider_adapters.nn as nn
from examples.custom_target import CONTEXT, HEAD_DIM, HIDDEN, LAYERS, VOCAB, PicoStack
from outrider import EngineOptions, NgramBuilder, Request, build_engine, registry
from outrider.conformance import check_target
from outrider.errors import BindError
from outrider.interfaces import LayerStackProvider, StateRollback, Target
from outrider.types import ModelSpec, StackInputs, StackOutput
from tests.docs.blocks import ROOT

PROMPTS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10), (5, 5, 5))
NUM_TOKENS = 16
NARROW = 10


def values(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over the rows alone, for values of any width."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
    hidden = torch.ones(len(q), len(q)).triu(1).bool()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


class LearnedPositions(PicoStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        table = values(CONTEXT, HIDDEN, seed=1) * 0.1
        return super().run_layers(hidden + table.index_select(0, inputs.positions), inputs)


class NarrowValues(PicoStack):
    """Heads whose values are narrower than their keys."""

    def __init__(self, padded: bool = True) -> None:
        super().__init__()
        self.padding = HEAD_DIM - NARROW if padded else 0

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = inputs.attend(layer, q, k, functional.pad(v[..., :NARROW], (0, self.padding)))
            return functional.pad(mixed[..., :NARROW], (0, HEAD_DIM - NARROW))

        return super().run_layers(hidden, evolve(inputs, attend=attend))


class SharedKeys(PicoStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        first: list[Tensor] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            first.extend((k, v) if layer == 0 else ())
            return inputs.attend(layer, q, *first)

        return super().run_layers(hidden, evolve(inputs, attend=attend))


class Experts(PicoStack):
    """The better of three maps for each row: all are computed, so no shape depends on the choice."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        maps, router = values(3, HEAD_DIM, HEAD_DIM, seed=2) * HEAD_DIM**-0.5, values(HEAD_DIM, 3, seed=3)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = inputs.attend(layer, q, k, v)
            chosen = functional.one_hot((mixed @ router).argmax(-1), 3).to(mixed.dtype)
            return torch.einsum("the,thd,edf->thf", chosen, mixed, maps)

        return super().run_layers(hidden, evolve(inputs, attend=attend))


class EmbeddingsOfLayers(LayerStackProvider):
    """Each layer has an embedding of the token of its own: rows carry them along, ``[hidden | layer 0 | layer 1]``."""

    def __init__(self) -> None:
        self.inner = PicoStack()
        self.tables = values(VOCAB, LAYERS * HEAD_DIM, seed=4)

    @property
    def spec(self) -> ModelSpec:
        return evolve(self.inner.spec, hidden_size=HIDDEN + LAYERS * HEAD_DIM)

    def embed(self, token_ids: Tensor) -> Tensor:
        return torch.cat([self.inner.embed(token_ids), self.tables.index_select(0, token_ids)], dim=-1)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        own = hidden[:, HIDDEN:]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return inputs.attend(layer, q, k, v) + own[:, None, layer * HEAD_DIM : (layer + 1) * HEAD_DIM]

        done = self.inner.run_layers(hidden[:, :HIDDEN], evolve(inputs, attend=attend))
        taps = tuple(torch.cat([tap, own], dim=-1) for tap in done.taps)
        return StackOutput(torch.cat([done.hidden, own], dim=-1), taps)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.inner.logits(hidden[:, :HIDDEN])


class KeepsState(PicoStack):
    """A stack that adds to each row a decaying sum of the rows before it; position 0 is taken for a beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(HIDDEN)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        rows: list[Tensor] = []
        for row, position in zip(hidden.unbind(0), inputs.positions.unbind(0), strict=True):
            self.state = torch.where(position == 0, torch.zeros_like(row), self.state)
            rows.append(row + self.state)
            self.state = 0.5 * (self.state + row)
        return super().run_layers(torch.stack(rows), inputs)


class NeverAsked(StateRollback):
    def checkpoint(self, first_row: int, num_rows: int) -> None:
        raise AssertionError

    def restore(self, first_row: int, counts: Tensor) -> None:
        raise AssertionError


STACKS: dict[str, Callable[[], LayerStackProvider]] = {
    "learned positions": LearnedPositions,
    "narrow values": NarrowValues,
    "shared keys": SharedKeys,
    "experts": Experts,
    "embeddings of layers": EmbeddingsOfLayers,
}


def recomputed(stack: LayerStackProvider, prompt: tuple[int, ...]) -> list[int]:
    """Greedy text by a pass over everything for each token, without a cache."""
    ids = list(prompt)
    for _ in range(NUM_TOKENS):
        inputs = StackInputs(torch.arange(len(ids)), plain_attention)
        hidden = stack.run_layers(stack.embed(torch.tensor(ids)), inputs).hidden
        ids.append(int(stack.logits(hidden[-1:]).argmax()))
    return ids[len(prompt) :]


def generated(target: Target, *, drafted: bool, rows: int = 3) -> list[list[int]]:
    engine = build_engine(
        target,
        NgramBuilder(3) if drafted else None,
        attention=registry.attention("sdpa"),
        runner=registry.runner("eager"),
        options=EngineOptions(max_batch_size=rows, max_length=64, max_prefill_tokens=5),
    )
    texts: dict[int, list[int]] = {engine.submit(Request(prompt, max_new_tokens=NUM_TOKENS)): [] for prompt in PROMPTS}
    while engine.has_work:
        for emission in engine.step():
            texts[emission.request_id] += emission.token_ids
    return list(texts.values())


@pytest.mark.parametrize("name", STACKS)
def test_models_that_are_said_to_fit_do(name: str) -> None:
    check_target(Target(STACKS[name]()), attention=registry.attention("sdpa"))
    reference = NarrowValues(padded=False) if name == "narrow values" else STACKS[name]()
    expected = [recomputed(reference, prompt) for prompt in PROMPTS]
    assert generated(Target(STACKS[name]()), drafted=True) == expected
    assert expected != [recomputed(PicoStack(), prompt) for prompt in PROMPTS]


def test_a_stack_with_state_decodes_one_request_at_a_time_and_nothing_more() -> None:
    expected = [recomputed(KeepsState(), prompt) for prompt in PROMPTS]
    target = Target(KeepsState(), rollback=NeverAsked())
    assert generated(target, drafted=False, rows=1) == expected
    assert generated(target, drafted=False, rows=3) != expected
    with pytest.raises(BindError, match="keeps state between passes"):
        generated(target, drafted=True, rows=1)
    report = check_target(target, attention=registry.attention("sdpa"), raise_failures=False)
    assert {"chunked prefill", "cached decode", "tree verification"} <= set(report.failed)


def test_every_public_name_of_the_parts_is_on_the_page() -> None:
    page = (ROOT / "docs" / "writing-an-adapter.md").read_text(encoding="utf-8")
    section = page.partition("### Parts to build from\n")[2].partition("\n## ")[0]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == set(nn.__all__)
