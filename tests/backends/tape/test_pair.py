"""Every phase of the trained pair, replayed, is what it is when run directly: outputs and all that is cached."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.conformance.paged import differs
from outrider.graphs import request_buckets
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapePool, TapeRunner
from tests.backends.tape.worlds import PHASES, PairWorld


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def spoiling(*buckets: int) -> TapeRunner:
    return TapeRunner(request_buckets(buckets), pool=TapePool(debug=True))


PASTS = [(0, 3, 9, 17), (30, 30, 1, 2), (40, 5, 0, 26)]


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return not any(differs(found[name], expected[name]) for name in expected)


def check(phase: str, runner: TapeRunner, calls: list[int], bucket: int | None = None) -> None:
    """``calls``: how many requests each call has; pasts and pages change from call to call.

    Bit for bit what the same rows give directly, padding included: matrix products of fewer rows may round otherwise, so
    without padding it is the same but for rounding.
    """
    replayed, direct, shorter, eager = PairWorld(phase), PairWorld(phase), PairWorld(phase), EagerRunner()
    for place, requests in enumerate(calls):
        for world in (replayed, direct, shorter):
            world.reserve(PASTS[place % len(PASTS)][:requests])
        found = replayed.run(runner, requests)
        assert same(found, direct.run(eager, requests, bucket)), (place, requests)
        assert close(found, shorter.run(eager, requests)), (place, requests)
    assert runner.report.ran == {(replayed.phase, "tape"): len(calls)}
    assert not runner.report.refused


@pytest.mark.parametrize("phase", PHASES)
def test_equal_counts(phase: str) -> None:
    check(phase, spoiling(1, 2, 3, 4), [1, 2, 3, 4, 2, 1])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("calls", [[4, 3, 4, 3], [3, 4, 3]], ids=["large first", "small first"])
def test_smaller_counts_are_padded(phase: str, calls: list[int]) -> None:
    check(phase, spoiling(4), calls, bucket=4)


@pytest.mark.parametrize("phase", ["verify tree", "step"])
@pytest.mark.parametrize("order", [[1, 2, 4], [4, 2, 1]], ids=["ascending", "descending"])
def test_capture_order_does_not_matter(phase: str, order: list[int]) -> None:
    runner = spoiling(1, 2, 4)
    replayed, direct, eager = PairWorld(phase), PairWorld(phase), EagerRunner()
    replayed.reserve(PASTS[2])
    before = replayed.cached()
    shapes = [replayed.shape(requests) for requests in order]
    captured = runner.capture(replayed.phase, replayed.body, shapes, replayed.planner)
    assert [shape.requests for shape in captured] == order
    assert same(replayed.cached(), before), "a capture changes nothing that is read"
    direct.reserve(PASTS[2])
    for requests in (4, 1, 2, 1, 4):
        assert same(replayed.run(runner, requests), direct.run(eager, requests))


def test_two_runners_on_one_pool_interleaved() -> None:
    pool = TapePool(debug=True)
    runners = [TapeRunner(request_buckets([1, 4]), pool=pool) for _ in range(2)]
    names = ("verify", "step")
    replayed, direct = [[PairWorld(name) for name in names] for _ in range(2)]
    eager = EagerRunner()
    for place, requests in enumerate([4, 1, 3, 1]):
        for runner, one, two in zip(runners, replayed, direct, strict=True):
            one.reserve(PASTS[place % 3][:requests])
            two.reserve(PASTS[place % 3][:requests])
            assert same(one.run(runner, requests), two.run(eager, requests, 1 if requests == 1 else 4))
    runners[0].close()
    for world in (replayed[1], direct[1]):
        world.reserve(PASTS[0][:2])
    assert same(replayed[1].run(runners[1], 2), direct[1].run(eager, 2, 4)), "closing one leaves the other as it is"


def test_phases_interleaved_in_one_runner_keep_their_outputs() -> None:
    """What verify gave is read after the draft has run: only a call of the same phase may spoil it."""
    runner = spoiling(1, 2)
    verify, step = PairWorld("verify"), PairWorld("step")
    verify.reserve(PASTS[0][:2])
    step.reserve(PASTS[1][:2])
    kept = runner.run(verify.phase, verify.body, verify.inputs(2), verify.batch(2), verify.planner)
    copies = {name: tensor.clone() for name, tensor in kept.items()}
    step.run(runner, 2)
    assert all(torch.equal(kept[name], copies[name]) for name in kept)
    verify.run(runner, 1)
    assert all(tensor.isnan().all() for tensor in kept.values()), "the next call of the phase spoils it"


def test_lengths_grow_into_the_next_graph() -> None:
    runner = spoiling(2)
    replayed, direct, eager = PairWorld("verify"), PairWorld("verify"), EagerRunner()
    for lengths in ((58, 3), (59, 4), (60, 5), (70, 70), (2, 59)):
        replayed.reserve(lengths)
        direct.reserve(lengths)
        assert same(replayed.run(runner, 2), direct.run(eager, 2))
    keys = {runner.admit(replayed.phase, replayed.shape(2))}
    replayed.reserve((60, 60))
    keys.add(runner.admit(replayed.phase, replayed.shape(2)))
    assert len(keys) == 2


def test_a_finished_row_may_have_no_pages() -> None:
    """A row without pages writes to the trash page and reads zeros, replayed or not."""
    runner = spoiling(4)
    replayed, direct, eager = PairWorld("verify"), PairWorld("verify"), EagerRunner()
    for world in (replayed, direct):
        world.reserve((9, 5, 7))
        world.pool.release(1)
    assert same(replayed.run(runner, 3), direct.run(eager, 3, 4))
