"""Many rounds leave nothing behind: no tensors, no Python objects."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise

import pytest
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder
from outrider.loop.build import EngineOptions
from outrider.loop.engine import Engine
from outrider.types import HiddenTap
from outrider.types.request import Request
from tests.support.engines import engine_of
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import toy_target

TARGET = toy_target()
DRAFT = ToyDraft(TARGET, taps=(HiddenTap.at(1),), recurrent=True)
PROMPTS = ((3,), (1, 2, 3), (4, 5, 6, 7, 8))


def tensors() -> int:
    gc.collect()
    # Not isinstance, which asks some of torch's lazy objects for their class, and they warn.
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


def rounds(engine: Engine, count: int) -> None:
    """``count`` steps with requests coming, finishing and being cancelled all the time."""
    for step in range(count):
        if engine.num_waiting == 0:
            engine.submit(Request(PROMPTS[step % 3], 5 + step % 11))
        if step % 17 == 0:
            engine.cancel(engine.submit(Request(PROMPTS[0], 4)))
        engine.step()


@pytest.mark.parametrize(
    "builder", [None, ChainBuilder(DRAFT, 3), TreeBuilder(DRAFT, 3, 2, 6)], ids=["plain", "chain", "tree"]
)
def test_memory_is_flat(builder: DrafterBuilder | None) -> None:
    engine = engine_of(TARGET, builder, EngineOptions(3, page_size=4, max_length=40, rounds_in_flight=1))
    rounds(engine, 60)  # all plans, caches and rows have been used
    before = tensors()
    tracemalloc.start()
    try:
        rounds(engine, 20)
        sizes: list[int] = []
        for _ in range(3):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
            rounds(engine, 110)
        # A leak shows in every stretch; Python's own caches may grow in one of them, in a process that ran other tests.
        grown = min(after - start for start, after in pairwise(sizes))
    finally:
        tracemalloc.stop()
    # A result or two more may be under way than before; a leak of one tensor a round would be hundreds.
    assert tensors() - before < 20
    assert grown < 15_000, f"{grown} bytes in 110 rounds"


def test_a_leak_of_one_tensor_a_round_would_show() -> None:
    engine = engine_of(TARGET, None, EngineOptions(1))
    before = tensors()
    kept = [engine.limits for _ in range(3)]
    leaked = [DRAFT.head.clone() for _ in range(25)]
    assert tensors() - before >= 20
    assert len(kept) + len(leaked) == 28
