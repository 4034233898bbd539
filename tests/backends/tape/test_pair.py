"""Every phase of the trained pair, replayed with its attention, is what it is run directly: outputs and all that is cached."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outrider.conformance import forbid_host_reads
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets
from outrider.interfaces import GraphRunner
from outrider.types import Admitted, CaptureHiddenMode, Phase, RefusalReason
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium, tape_runner
from tests.backends.worlds import PASTS, UNIFORM, PairWorld, close, same


def spoiling(*buckets: int, medium: TapeMedium | None = None, full: bool = False) -> LadderRunner:
    """A runner of phases alone, every padding row and every stale value poisoned; ``full``: all rows of an extension."""
    modes = {Phase.DRAFT_EXTEND: CaptureHiddenMode.FULL if full else CaptureHiddenMode.LAST}
    options = GraphOptions(requests=request_buckets(buckets), hidden_modes=modes, poison=True)
    medium = TapeMedium(debug=True) if medium is None else medium
    return tape_runner(options, Steps(rounds=False, breakable=False), medium)


def check(phase: str, runner: LadderRunner, calls: Sequence[int], bucket: int | None = None) -> None:
    """``calls``: how many requests each call has; pasts and pages change from call to call.

    Bit for bit what the same rows give directly, padding included: matrix products of fewer rows may round otherwise, so
    without padding it is the same but for rounding.
    """
    replayed, direct, shorter, eager = PairWorld(phase), PairWorld(phase), PairWorld(phase), EagerRunner()
    for place, requests in enumerate(calls):
        past = PASTS[place % len(PASTS)][:requests]
        found = replayed.run(runner, replayed.call(past))
        padded = direct.padded(direct.call(past), requests if bucket is None else bucket)
        assert same(found, direct.run(eager, padded)), (place, requests)
        assert close(found, shorter.run(eager, shorter.call(past))), (place, requests)
    assert runner.report.ran == {(replayed.phase, "phase"): len(calls)}
    assert not runner.report.refused
    assert len(runner.report.captured) <= len(set(calls)) * 2, "a graph for a size and a length, used again"


@pytest.mark.parametrize("phase", UNIFORM)
def test_batches_that_grow_and_shrink(phase: str) -> None:
    check(phase, spoiling(1, 2, 3, 5, 8), [1, 3, 8, 2, 5, 3, 1])


@pytest.mark.parametrize("phase", UNIFORM)
@pytest.mark.parametrize("calls", [[4, 3, 4, 3], [3, 4, 3]], ids=["large first", "small first"])
def test_smaller_counts_are_padded(phase: str, calls: list[int]) -> None:
    check(phase, spoiling(4), calls, bucket=4)


def test_all_rows_of_an_extension_where_the_runner_captures_them() -> None:
    """One row a request is wanted, of a graph that gives all: the same rows; and all of them from the same graph."""
    check("extend", spoiling(4, full=True), [4, 3, 4], bucket=4)
    runner, eager = spoiling(4, full=True), EagerRunner()
    one, two = PairWorld("extend"), PairWorld("extend")
    first, second = one.call(PASTS[0][:4]), two.call(PASTS[0][:4])
    found = runner.run(one.phase, one.body, first.inputs, first.batch, one.planner)
    expected = eager.run(two.phase, two.body, second.inputs, second.batch, two.planner)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["hidden"].shape[0] == 20


@pytest.mark.parametrize("phase", ["verify tree", "step"])
@pytest.mark.parametrize("order", [[1, 2, 4], [4, 2, 1]], ids=["ascending", "descending"])
def test_capture_order_does_not_matter(phase: str, order: list[int]) -> None:
    runner = spoiling(1, 2, 4)
    replayed, direct, eager = PairWorld(phase), PairWorld(phase), EagerRunner()
    before = replayed.cached()
    shapes = [replayed.shape(replayed.call(PASTS[2][:requests])) for requests in order]
    captured = runner.capture(replayed.phase, replayed.body, shapes, replayed.planner)
    assert [shape.requests for shape in captured] == order
    assert same(replayed.cached(), before), "a capture changes nothing that is read"
    direct.call(PASTS[2][:4])  # draws what the shapes above drew
    replayed, direct = PairWorld(phase, seed=3), PairWorld(phase, seed=3)
    for requests in (4, 1, 2, 1, 4):
        past = PASTS[2][:requests]
        assert same(replayed.run(runner, replayed.call(past)), direct.run(eager, direct.call(past)))


def test_two_runners_on_one_pool_interleaved() -> None:
    medium = TapeMedium(debug=True)
    runners = [spoiling(1, 4, medium=medium) for _ in range(2)]
    names = ("verify", "step")
    replayed, direct = [[PairWorld(name) for name in names] for _ in range(2)]
    eager = EagerRunner()
    for place, requests in enumerate([4, 1, 3, 1]):
        past = PASTS[place % 3][:requests]
        for runner, one, two in zip(runners, replayed, direct, strict=True):
            padded = two.padded(two.call(past), 1 if requests == 1 else 4)
            assert same(one.run(runner, one.call(past)), two.run(eager, padded))
    runners[0].close()
    past = PASTS[0][:2]
    padded = direct[1].padded(direct[1].call(past), 4)
    found = replayed[1].run(runners[1], replayed[1].call(past))
    assert same(found, direct[1].run(eager, padded)), "closing one leaves the other as it is"


def test_two_models_on_one_runner_have_graphs_of_their_own() -> None:
    """Equal phase, equal sizes, equal bodies: yet each reads and writes the memory of its own planner."""
    runner, eager = spoiling(2), EagerRunner()
    replayed, direct = [[PairWorld("verify", seed) for seed in (1, 2)] for _ in range(2)]
    for past in (PASTS[0][:2], PASTS[1][:2]):
        for one, two in zip(replayed, direct, strict=True):
            assert same(one.run(runner, one.call(past)), two.run(eager, two.call(past)))
    assert len(runner.report.captured) == 2


def test_phases_interleaved_in_one_runner_keep_their_outputs() -> None:
    """What verify gave is read after the draft has run: only a call of the same phase may spoil it."""
    runner = spoiling(1, 2)
    verify, step = PairWorld("verify"), PairWorld("step")
    call = verify.call(PASTS[0][:2])
    kept = runner.run(verify.phase, verify.body, call.inputs, call.batch, verify.planner)
    copies = {name: tensor.clone() for name, tensor in kept.items()}
    step.run(runner, step.call(PASTS[1][:2]))
    assert all(torch.equal(kept[name], copies[name]) for name in kept)
    verify.run(runner, verify.call(PASTS[1][:2]))
    assert all(not torch.equal(kept[name], copies[name]) for name in kept), "the next call of the phase writes there"


def test_an_output_of_one_step_is_the_input_of_the_next() -> None:
    runner, eager = spoiling(4), EagerRunner()
    worlds = PairWorld("step"), PairWorld("step")
    states: list[Tensor] = []
    runners: tuple[GraphRunner, GraphRunner] = (runner, eager)
    for world, chosen in zip(worlds, runners, strict=True):
        call = world.call(PASTS[0][:4])
        for _ in range(3):
            out = chosen.run(world.phase, world.body, call.inputs, call.batch, world.planner)
            call.inputs["state"] = out["state"]
        states.append(call.inputs["state"])
    assert torch.equal(*states)


def test_lengths_grow_into_the_next_graph() -> None:
    runner = spoiling(2)
    replayed, direct, eager = PairWorld("verify"), PairWorld("verify"), EagerRunner()
    found: set[int] = set()
    # 128 positions are the shortest graph; pages hold 80 of them, and a graph for more than there are pages serves as well.
    for lengths in ((58, 3), (59, 4), (60, 5), (70, 70), (2, 59)):
        call = replayed.call(lengths)
        answer = runner.admit(replayed.phase, replayed.shape(call))
        assert isinstance(answer, Admitted)
        assert answer.key.attention is not None
        found.add(answer.key.attention.max_length)
        assert same(replayed.run(runner, call), direct.run(eager, direct.call(lengths)))
    assert found == {128}


def test_a_finished_row_may_have_no_pages() -> None:
    """A row without pages writes to the trash page and reads zeros, replayed or not."""
    runner = spoiling(4)
    replayed, direct, eager = PairWorld("verify"), PairWorld("verify"), EagerRunner()
    calls = [world.call((9, 5, 7), without_pages=[1]) for world in (replayed, direct)]
    assert same(replayed.run(runner, calls[0]), direct.run(eager, direct.padded(calls[1], 4)))


@pytest.mark.parametrize("phase", UNIFORM)
def test_a_replay_asks_the_host_for_nothing(phase: str) -> None:
    runner, world = spoiling(4), PairWorld(phase)
    call = world.call(PASTS[0][:3])
    world.run(runner, call)
    with forbid_host_reads():
        runner.run(world.phase, world.body, call.inputs, call.batch, world.planner, call.rows)
    assert runner.report.ran == {(world.phase, "phase"): 2}


def test_more_hidden_states_than_were_captured_come_from_the_body_itself() -> None:
    runner, eager = spoiling(4), EagerRunner()
    one, two = PairWorld("extend"), PairWorld("extend")
    past = PASTS[0][:4]
    first, second = one.call(past), two.call(past)
    found = runner.run(one.phase, one.body, first.inputs, first.batch, one.planner)
    expected = eager.run(two.phase, two.body, second.inputs, second.batch, two.planner)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert runner.report.ran == {(Phase.DRAFT_EXTEND, "eager"): 1}
    assert runner.report.refused == {(Phase.DRAFT_EXTEND, RefusalReason.HIDDEN_MODE): 1}
    said = runner.report.explained[Phase.DRAFT_EXTEND, "phase", RefusalReason.HIDDEN_MODE]
    assert said.numbers == "draft extend is captured with hidden states LAST, asked is FULL"
    assert "FULL" in said.remedy


def test_a_graph_that_keeps_stale_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: where buffers are not filled, the rows of the call before come back."""
    monkeypatch.setattr("outrider.graphs.buffers.BufferSet.fill", nothing)
    with pytest.raises(AssertionError):
        check("verify", spoiling(4), [4, 4], bucket=4)


def test_padding_that_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: idle requests on a real page write over another's keys."""
    monkeypatch.setattr("outrider.graphs.attention.TRASH_PAGE", 2)
    with pytest.raises(AssertionError):
        check("verify", spoiling(4), [3, 3], bucket=4)


def nothing(*given: object) -> None:
    """Stands in for what is left out."""
