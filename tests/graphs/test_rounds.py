"""Whole rounds over time: rows that change between warm-up and capture, engines on one runner, memory that stays flat."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import cast

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.drafting.builders import ChainBuilder
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets
from outrider.interfaces import GraphRunner
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.loop.rows import RowStore
from outrider.types import OutputWants, Phase, RequestId, SamplingParams
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.backends.odd_stacks import featured
from tests.support.engines import Outcome, drive, outcomes, run
from tests.support.toy_target import CPU, ToyStack

OPTIONS = EngineOptions(max_batch_size=3, max_length=60, page_size=4)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=4)


def tapes(steps: Steps | None = None) -> LadderRunner:
    options = GraphOptions(requests=request_buckets([1, 2, 3]), poison=True)
    return tape_runner(options, steps, TapeMedium(debug=True))


def chain(runner: GraphRunner, length: int = 2, seed: int = 0) -> Engine:
    target, draft = featured(ToyStack(seed=seed))
    return build_engine(target, ChainBuilder(draft, length), attention=SdpaBackend(), runner=runner, options=OPTIONS)


def ids(found: list[Outcome]) -> list[tuple[list[int], list[int]]]:
    return [(outcome.token_ids, outcome.accept_lengths) for outcome in found]


def one_after_another(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Each request runs one round and is followed by another: no round has the rows of the one before."""
    done: dict[RequestId, Outcome] = {}
    chosen: list[RequestId] = []
    for place in range(6):
        chosen.append(engine.submit(Request((3, place + 1, 4), 12)))
        outcomes(engine.step(), done)
        if place < 5:
            engine.cancel(chosen[-1])
            outcomes(engine.read(), done)
    drive(engine, done)
    return ids([done[request_id] for request_id in chosen])


def test_rows_that_change_between_warm_up_and_capture() -> None:
    """The views of rows are made anew then, in the first of two recordings and not in the second."""
    runner = tapes()
    assert one_after_another(chain(runner)) == one_after_another(chain(EagerRunner()))
    assert runner.report.ran[Phase.ROUND, "eager"] == 1, "the second round is captured, whatever became of its row"
    assert runner.report.ran[Phase.ROUND, "round"] > 5
    assert Phase.ROUND not in {phase for phase, _ in runner.report.refused}


def test_rows_that_lie_elsewhere_are_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: a row's state that is made anew for each round cannot be captured."""
    whole = RowStore.view

    def anew(store: RowStore, first: int, count: int, max_length: int) -> object:
        view = whole(store, first, count, max_length)
        copy = torch.empty_like(view.draft_caps)
        kept.append(copy)
        return evolve(view, draft_caps=copy.copy_(view.draft_caps) if len(kept) % 2 else kept[-2])

    kept: list[Tensor] = []
    monkeypatch.setattr(RowStore, "view", anew)
    runner = tapes()
    one_after_another(chain(runner))
    assert runner.report.ran[Phase.ROUND, "round"] == 0
    assert Phase.ROUND in {phase for phase, _ in runner.report.refused}


def test_engines_that_share_a_runner() -> None:
    """Rounds of equal shape, over other weights and other rows."""
    runner = tapes()
    engines = [chain(runner, seed=seed) for seed in (0, 1)]
    plain = [chain(EagerRunner(), seed=seed) for seed in (0, 1)]
    requests = [Request((3, 1, 4), 9), Request((1, 5), 9)]
    for _ in range(2):
        for engine, direct in zip(engines, plain, strict=True):
            assert ids(run(engine, requests)) == ids(run(direct, requests))
    assert len([record for record in runner.report.captured if record.by == "round"]) >= 2
    assert runner.report.ran[Phase.ROUND, "round"] > 8


def live_bytes() -> int:
    """Of every storage there is."""
    gc.collect()
    tensors = [cast("Tensor", value) for value in gc.get_objects() if issubclass(type(value), Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device == CPU and not tensor.is_sparse]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("steps", [Steps(), Steps(rounds=False)], ids=["round", "phase"])
def test_memory_stays_flat_while_shapes_come_and_go(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    """More shapes than graphs are kept: what goes takes its buffers, its plans and its tape along."""
    for module in ("graphs.rounds", "graphs.phases", "planning"):
        monkeypatch.setattr(f"outrider.{module}._CAPACITY", 2)
    runner = tapes(steps)
    engine = chain(runner, length=1)
    shapes = [(1, SAMPLED, OutputWants()), (1, SamplingParams(), OutputWants(logprobs=1)), (2, SAMPLED, OutputWants())]
    found: list[int] = []
    for _ in range(3):
        for count, sampling, wants in shapes:
            run(engine, [Request((3, 1, 4), 6, sampling, wants=wants)] * count)
        found.append(live_bytes())
    kind = "round" if steps.rounds else "phase"
    captured = [record.size for record in runner.report.captured if record.by == kind]
    assert len(captured) > len(set(captured)), "graphs went and were captured anew"
    assert found[1] == found[2]


def test_the_measure_above_sees_a_graph_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = live_bytes()
    runner: Callable[[], LadderRunner] = tapes
    kept = chain(runner())
    run(kept, [Request((3, 1, 4), 9)])
    held = live_bytes()
    assert held - before > sum(record.nbytes for record in kept.report.captured) / 2
    kept.close()
    del kept
    assert live_bytes() < held
