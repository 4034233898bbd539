"""`PlanCache`: plans are shared by batches of equal sizes, and live for as long as they are kept or held."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from weakref import WeakSet

import pytest
import torch

from outrider.errors import CaptureError
from outrider.interfaces import AttnPlan, KVCache
from outrider.kv import PagedMemory
from outrider.planning import PlanCache
from outrider.types import AttentionSpec, AttnBatch
from outrider_backends.sdpa import SdpaBackend
from tests.support.planners import Doubling, uniform_batch
from tests.support.toy_target import CPU

LAYERS = [AttentionSpec(1, 1, 4, 0.5)]


class Counted(SdpaBackend):
    """Knows which of its plans are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: WeakSet[Doubling] = WeakSet()

    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        made = Doubling()
        self.alive.add(made)
        return made


def cache(backend: SdpaBackend, capacity: int, monkeypatch: pytest.MonkeyPatch) -> PlanCache:
    monkeypatch.setattr("outrider.planning._CAPACITY", capacity)
    return PlanCache(backend, LAYERS, PagedMemory(4, 16, 66, 4, CPU).cache(LAYERS, torch.float32))


TABLE = torch.zeros(4, 16, dtype=torch.int64)


def batch(requests: int) -> AttnBatch:
    made = uniform_batch(requests)
    return AttnBatch(made.query_lens, made.prefix_lens, TABLE[:requests], made.slots, made.max_length)


def test_the_least_recently_used_goes_unless_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Counted()
    plans = cache(backend, 2, monkeypatch)
    held = plans.plan(batch(1))
    for requests in (2, 3, 4, 2, 3, 4):
        plans.plan(batch(requests))
    gc.collect()
    assert len(backend.alive) == 3, "two that are kept, and the one that is held"
    assert plans.captured_plan(batch(1)) is held
    assert plans.plan(batch(1)) is held
    del held
    for requests in (2, 3):
        plans.plan(batch(requests))
    gc.collect()
    assert len(backend.alive) == 2
    with pytest.raises(
        CaptureError, match="built before the capture for 1 token, 1 request of 1 query, up to 64 positions"
    ):
        plans.captured_plan(batch(1))


def test_what_a_capture_was_given_lives_for_as_long_as_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs come and go: the plans of those that went are gone too."""
    backend = Counted()
    plans = cache(backend, 1, monkeypatch)
    graphs: list[AttnPlan] = []
    for _ in range(20):
        for requests in (1, 2, 3, 4):
            plans.plan(batch(requests))
            graphs.append(plans.captured_plan(batch(requests)))
            graphs = graphs[-2:]
    gc.collect()
    assert len(backend.alive) == 2
