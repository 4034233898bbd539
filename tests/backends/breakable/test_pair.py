"""Segments with eager attention between them give what the body gives directly, for any batch of any number of requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outrider.conformance import forbid_host_reads
from outrider.graphs import GraphOptions, LadderRunner, token_buckets
from outrider.graphs.crossing import Crossing
from outrider.types import Admitted, CaptureHiddenMode, Phase, PhaseShape, RefusalReason, RequestCount, TokenCount
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium
from tests.backends.worlds import PASTS, RAGGED, UNIFORM, PairWorld, close, same

Sizes = tuple[Sequence[int], Sequence[int]]
"""Pasts and numbers of queries."""

PROMPTS: list[Sizes] = [
    ((0, 0, 0, 0, 0, 0, 0, 0), (1, 9, 2, 17, 3, 1, 30, 5)),
    ((0,), (40,)),
    ((8, 0, 31), (5, 6, 1)),  # the rest of a prompt that was cut, a new one, the last token of another
    ((3, 0), (0, 4)),  # nothing is left of the first
    ((0,), (1,)),
]


def spoiling(*buckets: int, medium: TapeMedium | None = None, on_demand: bool = True) -> LadderRunner:
    """A runner of segments, every padding row and every stale value poisoned."""
    options = GraphOptions(tokens=token_buckets(buckets), on_demand=on_demand, poison=True)
    return breakable_runner(options, (TapeMedium(debug=True) if medium is None else medium,))


def check(name: str, runner: LadderRunner, calls: Sequence[Sizes], buckets: Sequence[int]) -> None:
    """Bit for bit what the same rows give directly, padding included; without padding, but for rounding."""
    replayed, direct, shorter, eager = PairWorld(name), PairWorld(name), PairWorld(name), EagerRunner()
    for pasts, queries in calls:
        call = replayed.call(pasts, queries)
        bucket = min(size for size in buckets if size >= call.batch.num_tokens)
        found = replayed.run(runner, call)
        assert same(found, direct.run_in_pieces(direct.call(pasts, queries), bucket)), (pasts, queries)
        assert close(found, shorter.run(eager, shorter.call(pasts, queries))), (pasts, queries)
    assert runner.report.ran == {(replayed.phase, "breakable"): len(calls)}
    assert not runner.report.refused
    assert len(runner.report.captured) <= len(buckets), "one graph serves every batch of up to its tokens"


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize("order", [1, -1], ids=["small after large", "large after small"])
def test_ragged_batches(name: str, order: int) -> None:
    check(name, spoiling(4, 16, 70), PROMPTS[::order], (4, 16, 70))


def test_one_graph_serves_any_number_of_requests() -> None:
    """It is captured with the metadata of one request."""
    runner, world = spoiling(80, on_demand=False), PairWorld("prefill")
    captured = runner.capture(world.phase, world.body, [PhaseShape(TokenCount(64), RequestCount(1))], world.planner)
    assert captured == (PhaseShape(TokenCount(80), RequestCount(1)),)
    direct = PairWorld("prefill")
    for pasts, queries in PROMPTS:
        found = world.run(runner, world.call(pasts, queries))
        assert same(found, direct.run_in_pieces(direct.call(pasts, queries), 80))
    assert runner.report.ran == {(Phase.TARGET_PREFILL, "breakable"): len(PROMPTS)}
    assert len(runner.report.captured) == 1


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_batches(name: str) -> None:
    calls: list[Sizes] = [(PASTS[place % 3][:count], (1,) * count) for place, count in enumerate((3, 8, 1, 5, 8, 2))]
    check(name, spoiling(1, 8, 18, 48), calls, (1, 8, 18, 48))


def test_lengths_are_no_part_of_a_graph() -> None:
    runner, replayed, direct = spoiling(16), PairWorld("verify"), PairWorld("verify")
    for pasts in ((0, 0, 0), (60, 1, 3), (75, 75, 75), (5, 70, 0)):
        found = replayed.run(runner, replayed.call(pasts))
        assert same(found, direct.run_in_pieces(direct.call(pasts), 16))
    assert len(runner.report.captured) == 1


def test_two_runners_on_one_medium_interleaved() -> None:
    medium = TapeMedium(debug=True)
    runners = [spoiling(20, 70, medium=medium) for _ in range(2)]
    replayed, direct = [[PairWorld(name) for name in ("prefill", "draft prefill")] for _ in range(2)]
    for pasts, queries in (PROMPTS[0], PROMPTS[2], PROMPTS[0], PROMPTS[1], PROMPTS[4]):
        for runner, one, two in zip(runners, replayed, direct, strict=True):
            bucket = 20 if sum(queries) <= 20 else 70
            expected = two.run_in_pieces(two.call(pasts, queries), bucket)
            assert same(one.run(runner, one.call(pasts, queries)), expected)
    runners[0].close()
    found = replayed[1].run(runners[1], replayed[1].call(*PROMPTS[0]))
    assert same(found, direct[1].run_in_pieces(direct[1].call(*PROMPTS[0]), 70)), "closing one leaves the other"


def test_target_and_draft_of_one_runner_share_what_crosses_a_break() -> None:
    runner = spoiling(70)
    names = ("prefill", "draft prefill", "ragged verify")
    replayed, direct = [[PairWorld(name) for name in names] for _ in range(2)]
    for pasts, queries in (PROMPTS[0], PROMPTS[3], PROMPTS[2]):
        for one, two in zip(replayed, direct, strict=True):
            found = one.run(runner, one.call(pasts, queries))
            assert same(found, two.run_in_pieces(two.call(pasts, queries), 70))
    assert runner.report.ran == {(world.phase, "breakable"): 3 for world in replayed}


def test_capturing_changes_nothing_that_is_read() -> None:
    for name in ("prefill", "step tree"):
        world = PairWorld(name)
        before = world.cached()
        runner = spoiling(4, 8)
        shapes = [PhaseShape(TokenCount(count), RequestCount(1)) for count in (8, 3, 4)]
        captured = runner.capture(world.phase, world.body, shapes, world.planner)
        assert [shape.tokens for shape in captured] == [8, 4]
        assert same(world.cached(), before)
        records = runner.report.captured
        assert [(record.by, record.size) for record in records] == [
            ("breakable", "8 tokens"),
            ("breakable", "4 tokens"),
        ]
        assert all(record.seconds > 0 and record.nbytes > 0 for record in records)


def test_a_replay_asks_the_host_for_nothing() -> None:
    """Nor does attention between the segments, where the host knows the lengths or needs none."""
    runner = spoiling(70)
    for name in ("prefill", "verify", "step tree"):
        world = PairWorld(name)
        call = world.call((4, 3), (7, 2))
        world.run(runner, call)
        with forbid_host_reads():
            runner.run(world.phase, world.body, call.inputs, call.batch, world.planner, call.rows)


def test_more_tokens_than_the_largest_bucket_run_directly() -> None:
    runner, one, two = spoiling(4, 16), PairWorld("prefill"), PairWorld("prefill")
    call = one.call((0, 0), (9, 8))
    answer = runner.admit(one.phase, one.shape(call))
    assert not isinstance(answer, Admitted)
    assert (answer.reason, answer.by) == (RefusalReason.TOO_LARGE, "breakable")
    assert answer.numbers == "17 tokens, the largest bucket holds 16"
    assert same(one.run(runner, call), two.run(EagerRunner(), two.call((0, 0), (9, 8))))
    assert runner.report.ran == {(Phase.TARGET_PREFILL, "eager"): 1}


def test_more_hidden_states_than_were_captured_come_from_the_body_itself() -> None:
    runner, one, two = spoiling(16), PairWorld("draft prefill"), PairWorld("draft prefill")
    first, second = one.call((0, 2), (9, 4)), two.call((0, 2), (9, 4))
    found = runner.run(one.phase, one.body, first.inputs, first.batch, one.planner)
    expected = EagerRunner().run(two.phase, two.body, second.inputs, second.batch, two.planner)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert runner.report.refused == {(Phase.DRAFT_EXTEND, RefusalReason.HIDDEN_MODE): 1}
    assert same(one.run(runner, first), two.run_in_pieces(second, 16)), "what was captured is served as before"
    assert runner.report.ran == {(Phase.DRAFT_EXTEND, "eager"): 1, (Phase.DRAFT_EXTEND, "breakable"): 1}


def test_all_rows_of_an_extension_where_the_runner_captures_them() -> None:
    modes = {Phase.DRAFT_EXTEND: CaptureHiddenMode.FULL}
    options = GraphOptions(tokens=token_buckets([16]), hidden_modes=modes, poison=True)
    runner = breakable_runner(options, (TapeMedium(debug=True),))
    one, two = PairWorld("draft prefill"), PairWorld("draft prefill")
    first, second = one.call((0, 2), (9, 4)), two.call((0, 2), (9, 4))
    found = runner.run(one.phase, one.body, first.inputs, first.batch, one.planner)
    expected = EagerRunner().run(two.phase, two.body, second.inputs, second.batch, two.planner)
    assert found["hidden"].shape[0] == 13
    assert close(dict(found), dict(expected))
    assert same(one.run(runner, first), two.run_in_pieces(second, 16))


def test_a_segment_that_does_not_hand_on_what_crosses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: queries, keys and values never reach the buffers that attention reads."""
    monkeypatch.setattr("outrider.graphs.crossing.Crossing.keep", without_copying)
    with pytest.raises(AssertionError):
        check("prefill", spoiling(70), PROMPTS[:1], (70,))


def without_copying(crossing: Crossing, name: str, tensor: Tensor) -> Tensor:
    return crossing.buffer(name, tensor.shape[0], tuple(tensor.shape[1:]), tensor)


def test_rows_of_an_earlier_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: inputs that are not copied leave those of the call before."""
    monkeypatch.setattr("outrider.graphs.buffers.BufferSet.fill", nothing)
    with pytest.raises(AssertionError):
        check("prefill", spoiling(70), PROMPTS[:2], (70,))


def test_padding_that_attends_is_found() -> None:
    """The checks above can fail: a body that mixes rows reads the padding, which is poisoned."""
    world = PairWorld("prefill")
    call = world.call((0,), (3,))
    runner = spoiling(4)
    world.run(runner, call)
    outputs = runner.run(world.phase, world.body, call.inputs, call.batch, world.planner)
    hidden = outputs["hidden"]
    whole = torch.as_strided(hidden, (4, hidden.shape[1]), hidden.stride())
    assert whole[3].isnan().all()
    assert hidden.isfinite().all()


def nothing(*given: object) -> None:
    """Stands in for what is left out."""
