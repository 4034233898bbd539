"""A round never asks the device for a value, and its operators and shapes depend on sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.conformance import forbid_host_reads
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.errors import ConformanceError
from outrider.interfaces import BoundDraft, DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.loop.engine import Engine
from outrider.types import CaptureHiddenMode, DraftOutput, HiddenTap, OutputWants, SamplingParams, StackInputs
from outrider.types.request import Request
from tests.support.engines import engine_of
from tests.support.pair import trained_pair
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToyStack

STACK = ToyStack()
TARGET = Target(STACK, STACK.weights)
TAPS = (HiddenTap.at(1), HiddenTap.final_norm())
SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=3)


def builders(target: Target, draft: BoundDraft) -> dict[str, DrafterBuilder | None]:
    return {
        "plain": None,
        "chain": ChainBuilder(draft, 4),
        "tree": TreeBuilder(draft, 3, 3, 8),
        "static": StaticTreeBuilder(draft, (0, 0, 1, 1, 2, 4)),
    }


def running(target: Target, builder: DrafterBuilder | None, requests: Sequence[Request]) -> Engine:
    """An engine with all of ``requests`` prefilled and one round run."""
    engine = engine_of(target, builder, EngineOptions(max_batch_size=len(requests), page_size=4, rounds_in_flight=50))
    for request in requests:
        engine.submit(request)
    engine.admit()
    engine.prefill()
    engine.run_round()
    return engine


REQUESTS = [
    Request((3, 1, 4), 40),
    Request((1,), 40, SAMPLED),
    Request((2, 7, 1, 8, 2, 8), 1),  # has ended already
    Request((5, 5), 40, draft_cap=1, wants=OutputWants(logprobs=2, hidden=CaptureHiddenMode.FULL)),
]


@pytest.mark.parametrize("name", ["plain", "chain", "tree", "static"])
def test_a_round_of_a_mixed_batch_reads_nothing_back(name: str) -> None:
    draft = ToyDraft(TARGET, taps=TAPS, recurrent=True, ids=(1, 4, 7, 40, 3))
    engine = running(TARGET, builders(TARGET, draft)[name], REQUESTS)
    with forbid_host_reads():
        for _ in range(3):
            engine.run_round()
    assert len(engine.read()) > 3


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_a_round_of_the_trained_pair_reads_nothing_back(name: str) -> None:
    pair = trained_pair()
    engine = running(pair.target, builders(pair.target, pair.eagle3)[name], [Request((1, 65, 267), 20)])
    with forbid_host_reads():
        engine.run_round()


class Peeking(ToyDraft):
    """Reads a value in a step, as code that branches on data does."""

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        if inputs.positions.max().item() < 0:
            raise ValueError("no such position")
        return super().step(embeds, state, inputs)


@pytest.mark.parametrize("name", ["chain", "tree", "static"])
def test_a_host_read_that_is_planted_is_found(name: str) -> None:
    engine = running(TARGET, builders(TARGET, Peeking(TARGET))[name], REQUESTS)
    with pytest.raises(ConformanceError, match="makes the host wait"), forbid_host_reads():
        engine.run_round()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    """Notes every operator with the shapes, types and strides of what it is given."""

    seen: list[object]

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.seen.append((func, [_shape(value) for value in _flat((args, tuple((kwargs or {}).values())))]))
        return func(*args, **(kwargs or {}))


def _flat(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return [item for part in cast("Sequence[object]", value) for item in _flat(part)]
    return [value]


def _shape(value: object) -> object:
    return (tuple(value.shape), value.dtype, value.stride()) if isinstance(value, Tensor) else value


def watched_round(engine: Engine) -> list[object]:
    watch = Watch()  # type: ignore[no-untyped-call]  # torch leaves TorchDispatchMode.__init__ unannotated
    watch.seen = []
    with watch:
        engine.run_round()
    return watch.seen


@pytest.mark.parametrize("name", ["plain", "chain", "tree", "static"])
def test_rounds_of_equal_sizes_are_the_same_operators_on_the_same_shapes(name: str) -> None:
    """Whatever is accepted, whoever has finished: only sizes and the bucket of the longest sequence count."""
    drafts = (ToyDraft(TARGET, taps=TAPS, recurrent=True, seed=1), ToyDraft(TARGET, taps=TAPS, recurrent=True, seed=2))
    rounds: list[list[object]] = []
    for draft in drafts:
        engine = running(TARGET, builders(TARGET, draft)[name], [Request((3, 1, 4), 40), Request((1,), 3)])
        rounds += [watched_round(engine) for _ in range(4)]
    assert len(rounds[0]) > 20
    assert all(each == rounds[0] for each in rounds[1:])


def test_another_draft_length_is_another_sequence_of_operators() -> None:
    """The check above can tell rounds apart."""
    draft = SelfDraft(TARGET, STACK)
    one, two = (watched_round(running(TARGET, ChainBuilder(draft, n), REQUESTS[:1])) for n in (3, 4))
    assert one != two


def test_prefill_of_text_reads_nothing_back() -> None:
    engine = engine_of(TARGET, ChainBuilder(ToyDraft(TARGET, taps=TAPS), 3), EngineOptions(max_prefill_tokens=3))
    for request in REQUESTS:
        engine.submit(request)
    engine.admit()
    with forbid_host_reads(), torch.inference_mode():
        while engine.num_prefilling:
            engine.prefill()
            engine.run_round()
