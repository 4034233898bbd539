"""Phases as CUDA graphs, with their attention and in segments, on the card: what the same rows give directly."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import LoadOptions
from outrider_backends.cuda_graph import CudaGraphMedium, cuda_graph_runner
from outrider_backends.eager import EagerRunner
from tests.backends.worlds import PASTS, RAGGED, UNIFORM, PairWorld, same
from tests.support.bodies import OutsideBody
from tests.support.pair import TrainedPair
from tests.support.planners import FixedPlanner

pytestmark = pytest.mark.gpu

PROMPTS: list[tuple[Sequence[int], Sequence[int]]] = [
    ((0, 0, 0, 0, 0, 0, 0, 0), (1, 9, 2, 17, 3, 1, 30, 5)),
    ((0,), (40,)),
    ((8, 0, 31), (5, 6, 1)),
    ((0,), (1,)),
]


@pytest.fixture(scope="module")
def pair() -> TrainedPair:
    options = LoadOptions(torch.device("cuda", torch.cuda.current_device()), torch.float32)
    files = registry.pair("tiny")
    target = registry.load_target(Checkpoint(files.target), options)
    eagle3, eagle1 = (registry.load_draft(Checkpoint(draft), options).bind(target) for draft in files.drafts)
    return TrainedPair(target, eagle3, eagle1)


def phases(*buckets: int, medium: CudaGraphMedium | None = None) -> LadderRunner:
    options = GraphOptions(requests=request_buckets(buckets), poison=True)
    return cuda_graph_runner(options, Steps(rounds=False, breakable=False), medium)


def segments(*buckets: int, medium: CudaGraphMedium | None = None) -> LadderRunner:
    options = GraphOptions(tokens=token_buckets(buckets), poison=True)
    return cuda_graph_runner(options, Steps(rounds=False, phases=False), medium)


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", UNIFORM)
def test_with_attention(pair: TrainedPair, name: str) -> None:
    """Batches that grow and shrink, padded to buckets."""
    runner, eager = phases(1, 4, 8), EagerRunner()
    replayed, direct = (PairWorld(name, pair=pair) for _ in range(2))
    counts = [4, 1, 8, 3, 5, 4, 1]
    for place, count in enumerate(counts):
        past = PASTS[place % 3][:count]
        found = replayed.run(runner, replayed.call(past))
        bucket = next(size for size in (1, 4, 8) if size >= count)
        close(found, direct.run(eager, direct.padded(direct.call(past), bucket)))
    assert runner.report.ran == {(replayed.phase, "phase"): len(counts)}
    assert not runner.report.refused


@pytest.mark.parametrize("name", UNIFORM)
def test_with_attention_bit_for_bit_where_nothing_is_padded(pair: TrainedPair, name: str) -> None:
    """The same kernels on the same sizes: as many rows, and attention over as many positions."""
    runner, eager = phases(4), EagerRunner()
    replayed, direct = (PairWorld(name, pair=pair) for _ in range(2))
    for past in (PASTS[0][:4], PASTS[1][:4], PASTS[2][:4]):
        call = direct.call(past)
        longer = evolve(call, batch=evolve(call.batch, max_length=128))
        assert same(replayed.run(runner, replayed.call(past)), direct.run(eager, longer))


@pytest.mark.parametrize("name", [*RAGGED, *UNIFORM])
def test_in_segments(pair: TrainedPair, name: str) -> None:
    """The same matrix products on the same number of rows, and the very attention that runs directly.

    PyTorch may attend to a dense copy of short ragged rows by another kernel than to a view, so there bits may differ.
    """
    runner, eager = segments(4, 16, 70), EagerRunner()
    replayed, direct, shorter = (PairWorld(name, pair=pair) for _ in range(3))
    for pasts, queries in (*PROMPTS, *PROMPTS[::-1]):
        call = replayed.call(pasts, queries)
        bucket = next(size for size in (4, 16, 70) if size >= call.batch.num_tokens)
        found = replayed.run(runner, call)
        in_pieces = direct.run_in_pieces(direct.call(pasts, queries), bucket)
        close(found, in_pieces)
        assert name in RAGGED or same(found, in_pieces)
        close(found, shorter.run(eager, shorter.call(pasts, queries)))
    assert runner.report.ran == {(replayed.phase, "breakable"): 2 * len(PROMPTS)}
    assert not runner.report.refused


@pytest.mark.parametrize("order", [(1, 4, 8), (8, 4, 1)], ids=["ascending", "descending"])
def test_capture_order_does_not_matter_and_capturing_changes_nothing(pair: TrainedPair, order: Sequence[int]) -> None:
    runner, eager = phases(1, 4, 8), EagerRunner()
    replayed, direct = (PairWorld("verify tree", pair=pair) for _ in range(2))
    shapes = [replayed.shape(replayed.call(PASTS[2][:count])) for count in order]
    for count in order:
        direct.call(PASTS[2][:count])  # draws the same numbers
    before = replayed.cached()
    captured = runner.capture(replayed.phase, replayed.body, shapes, replayed.planner)
    assert [shape.requests for shape in captured] == list(order)
    assert same(replayed.cached(), before)
    for count in (8, 1, 4, 1, 8):
        past = PASTS[2][:count]
        close(replayed.run(runner, replayed.call(past)), direct.run(eager, direct.call(past)))


def test_two_runners_on_one_medium_interleaved(pair: TrainedPair) -> None:
    """One with attention, one in segments, in the same memory: each keeps what it gave."""
    medium = CudaGraphMedium()
    runners = [phases(1, 4, medium=medium), segments(16, 70, medium=medium)]
    names = ("verify", "prefill")
    replayed, direct = ([PairWorld(name, pair=pair) for name in names] for _ in range(2))
    eager = EagerRunner()
    for place, count in enumerate([4, 1, 3, 1]):
        past = PASTS[place % 3][:count]
        queries = PROMPTS[0][1][:count]
        calls = [world.call(past, queries) for world in replayed]
        outputs = [
            runner.run(world.phase, world.body, call.inputs, call.batch, world.planner, call.rows)
            for runner, world, call in zip(runners, replayed, calls, strict=True)
        ]
        for found, world in zip(outputs, direct, strict=True):
            call = world.call(past, queries)
            expected = eager.run(world.phase, world.body, call.inputs, call.batch, world.planner, call.rows)
            close(dict(found), dict(expected))
    runners[0].close()
    pasts, lengths = PROMPTS[0]
    found = replayed[1].run(runners[1], replayed[1].call(pasts, lengths))
    close(found, direct[1].run(eager, direct[1].call(pasts, lengths)))


def test_graphs_that_are_garbage_do_not_spoil_a_capture(pair: TrainedPair) -> None:
    """A dropped runner holds its graphs in cycles; collected in the middle of a capture they would end it."""
    world = PairWorld("verify", pair=pair)
    for _ in range(3):
        world.run(phases(4), world.call(PASTS[0][:3]))
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        runner = segments(70)
        world.run(runner, world.call(PASTS[0][:3]))
    finally:
        gc.set_threshold(*before)
    assert runner.report.ran == {(world.phase, "breakable"): 1}


@pytest.mark.parametrize("name", UNIFORM)
def test_a_replay_waits_for_nothing(pair: TrainedPair, name: str) -> None:
    for runner in (phases(4), segments(70)):
        world = PairWorld(name, pair=pair)
        call = world.call(PASTS[0][:3])
        world.run(runner, call)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            runner.run(world.phase, world.body, call.inputs, call.batch, world.planner, call.rows)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert {where for _, where in runner.report.ran} <= {"phase", "breakable"}


def positive(x: Tensor) -> Tensor:
    """Rows kept where positive: an index of as many places as there are, which waits for the card."""
    out = torch.zeros_like(x)
    places = (x > 0).nonzero(as_tuple=True)
    out[places] = x[places]
    return out


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale.sum().item()


def test_pieces_outside_of_graphs(pair: TrainedPair) -> None:
    """Attention that keeps nothing stands in for a backend's."""
    for runner, kind in ((phases(4), "phase"), (segments(2, 6), "breakable")):
        body = OutsideBody(positive, scaled)
        world = PairWorld("decode", pair=pair)
        planner = FixedPlanner(device=torch.device("cuda", torch.cuda.current_device()))
        for count in (3, 4, 1, 4):
            x = torch.randn(count, 2, device="cuda")
            call = world.call(PASTS[0][:count])
            found = runner.run(world.phase, body, {"x": x}, call.batch, planner)["x"]
            torch.testing.assert_close(found, positive(x + 1) * 2 + 2 * (x * 3) * 15)
        assert runner.report.ran == {(world.phase, kind): 4}
        runner.close()
