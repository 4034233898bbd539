"""Bodies of media: in the same groups with a runner and without one, by graphs of exact sizes, each refusal explained."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import CaptureError, ClosedError, ConformanceError, GraphError
from outrider.graphs import GraphOptions, LadderRunner, Steps, encode_media, groups_of, media_calls
from outrider.interfaces import GraphMedium, GraphRunner
from outrider.types import Admitted, Axis, BodyCalls, BufferSlot, Phase, PhaseShape, RefusalReason, Refused, Role
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium
from tests.support.bodies import PIXELS, Tower, X, positive, read
from tests.support.media import FailingMedium, NoGraphs
from tests.support.planners import FixedPlanner

PHASE = Phase.MEDIA_ENCODE
PLANNER = FixedPlanner()


def ladder(
    *media: GraphMedium, steps: Steps | None = None, role: Role = Role.BOTH, on_demand: bool = True, poison: bool = True
) -> LadderRunner:
    options = GraphOptions(role=role, on_demand=on_demand, poison=poison)
    return LadderRunner("test", media or (TapeMedium(debug=True),), steps, options)


def given(items: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"pixels": torch.randn(items, 3, generator=generator), "scale": torch.randn(3, generator=generator)}


def expected(tower: Tower, inputs: Mapping[str, Tensor], groups: tuple[int, ...]) -> Tensor:
    """Rows of each group computed apart, without the body."""
    found: list[Tensor] = []
    for pixels in inputs["pixels"].split_with_sizes(list(groups)):
        others = positive(pixels - 1) if tower.outside else pixels.mean(0).expand_as(pixels)
        found.append(torch.stack([tower.extra(pixels * inputs["scale"]), others], dim=1))
    return torch.cat(found)


def encode(runner: GraphRunner | None, tower: Tower, items: int, seed: int = 0) -> None:
    inputs = given(items, seed)
    kept = {name: tensor.clone() for name, tensor in inputs.items()}
    rows = encode_media(tower, inputs, runner)["rows"]
    assert torch.equal(rows, expected(tower, inputs, groups_of(items, tower.counts)))
    assert all(torch.equal(inputs[name], kept[name]) for name in inputs)


def refused(runner: LadderRunner) -> Refused:
    [(key, refusal)] = runner.report.explained.items()
    assert key == (PHASE, refusal.by, refusal.reason)
    assert refusal.numbers
    assert refusal.remedy
    return refusal


def test_items_are_cut_into_the_largest_groups_first() -> None:
    assert [groups_of(items, (1, 2, 4, 8)) for items in (1, 3, 5, 8, 13, 20)] == [
        (1,),
        (2, 1),
        (4, 1),
        (8,),
        (8, 4, 1),
        (8, 8, 4),
    ]
    for items in range(1, 40):
        groups = groups_of(items, (1, 3, 7))
        assert (sum(groups), groups) == (items, tuple(sorted(groups, reverse=True)))


@pytest.mark.parametrize("counts", [(2, 4), (1, 1), (1, 4, 2), (0, 1), (-1, 1)])
def test_counts_of_which_not_every_number_is_a_sum(counts: tuple[int, ...]) -> None:
    with pytest.raises(ConformanceError, match=r"names the counts .*; they must ascend from 1"):
        encode_media(Tower(counts=counts), given(3))


RUNNERS: Mapping[str, Callable[[], GraphRunner | None]] = {
    "none": lambda: None,
    "eager": EagerRunner,
    "tape": ladder,
    "not poisoned": lambda: ladder(poison=False),
    "rounds alone": lambda: ladder(steps=Steps(phases=False, breakable=False)),
    "breakable": lambda: breakable_runner(GraphOptions(poison=True), (TapeMedium(debug=True),)),
}


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("outside", [False, True])
def test_any_number_of_items_gives_the_same_rows_whatever_runs_them(name: str, outside: bool) -> None:
    runner, tower = RUNNERS[name](), Tower(outside=outside)
    for items in (*range(1, 10), 3, 1):
        encode(runner, tower, items, seed=items)
    assert set(tower.seen) == {1, 2, 4}
    if runner is not None:
        calls = sum(len(groups_of(items, tower.counts)) for items in (*range(1, 10), 3, 1))
        assert runner.report.ran == {(PHASE, "eager" if name == "eager" else "media"): calls}
        assert not runner.report.refused
        assert len(runner.report.captured) == (0 if name == "eager" else 3)


def test_a_body_without_counts_is_run_once_on_all() -> None:
    tower = Tower(counts=(), eager_because="it reads sizes")
    for runner in (None, EagerRunner(), ladder()):
        inputs = given(5)
        found = encode_media(tower, inputs, runner)["rows"]
        assert torch.equal(found, expected(tower, inputs, (5,)))
    assert tower.seen == [5, 5, 5]


@pytest.mark.parametrize("name", RUNNERS)
def test_what_cannot_be_cut_into_groups_is_refused_and_nothing_of_it_left_out(name: str) -> None:
    runner, right = RUNNERS[name](), given(3)
    longer = BufferSlot("masks", Axis.REQUESTS, (2,), torch.float32)
    tower = Tower(inputs=(PIXELS, X, longer))
    with pytest.raises(GraphError) as caught:
        encode_media(tower, {**right, "masks": torch.zeros(5, 2)}, runner)
    for said in (
        "3 problems",
        "'scale' was given, declared are pixels, x, masks",
        "'x' is declared but was not given; given are pixels, scale, masks",
        "'masks' is [5, 2], but there are 3 items; give as many along axis 0",
    ):
        assert said in str(caught.value)
    assert not tower.seen


def test_what_a_graph_gives_is_its_own_memory_and_what_is_encoded_is_not() -> None:
    """Rows of a prompt that waits must not change when the next one is encoded."""
    runner, tower = ladder(), Tower()
    one, two = (runner.run_media(tower, given(2, seed))["rows"] for seed in (1, 2))
    assert torch.equal(one, two), "else a copy would not be needed"
    kept = [encode_media(tower, given(2, seed), runner)["rows"] for seed in (1, 2, 3)]
    for seed, rows in zip((1, 2, 3), kept, strict=True):
        assert torch.equal(rows, expected(tower, given(2, seed), (2,)))


def test_two_bodies_have_graphs_of_their_own() -> None:
    runner, one, two = ladder(), Tower(), Tower(torch.abs)
    for _ in range(2):
        for tower in (one, two):
            encode(runner, tower, 3)
    assert len(runner.report.captured) == 4


def test_the_least_recently_used_graph_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.graphs.media_graphs._CAPACITY", 2)
    runner, tower = ladder(), Tower()
    for items in (1, 2, 1, 4, 1, 2):
        encode(runner, tower, items)
    assert [record.size for record in runner.report.captured] == ["1 item", "2 items", "4 items", "2 items"]


def test_a_graph_keeps_its_body_alive_until_the_runner_is_closed() -> None:
    """Else another one could come to its id, and be given its graph."""
    runner, tower = ladder(), Tower()
    encode(runner, tower, 1)
    gone = weakref.ref(tower)
    del tower
    gc.collect()
    assert gone() is not None
    runner.close()
    gc.collect()
    assert gone() is None


def test_captured_ahead_nothing_is_captured_later() -> None:
    runner, tower = ladder(on_demand=False), Tower()
    shapes = [PhaseShape.of_media(items) for items in (4, 2, 1, 2)]
    assert all(isinstance(runner.admit(PHASE, shape), Refused) for shape in shapes)
    assert runner.capture(PHASE, tower, shapes, PLANNER) == tuple(shapes[:3])
    captured = list(runner.report.captured)
    assert [(record.phase, record.by, record.size) for record in captured] == [
        (PHASE, "media", "4 items"),
        (PHASE, "media", "2 items"),
        (PHASE, "media", "1 item"),
    ]
    assert all(record.seconds > 0 and record.nbytes > 0 for record in captured)
    for shape in shapes:
        assert runner.admit(PHASE, shape) == Admitted(shape, padding=shape.tokens)
    for items in range(1, 10):
        encode(runner, tower, items)
    assert (runner.report.captured, dict(runner.report.refused)) == (captured, {})
    encode(runner, Tower(), 1)
    assert refused(runner).reason is RefusalReason.NOT_CAPTURED
    assert refused(runner).numbers == "media encode of 1 item; 0 graphs of the phase, none of that size"


def test_a_size_is_served_by_no_other() -> None:
    runner, tower = ladder(on_demand=False), Tower()
    runner.capture(PHASE, tower, [PhaseShape.of_media(4)], PLANNER)
    answer = runner.admit(PHASE, PhaseShape.of_media(2))
    assert isinstance(answer, Refused)
    encode(runner, tower, 2)
    assert runner.report.ran == {(PHASE, "eager"): 1}


def test_a_body_that_says_that_it_cannot_be_captured_is_not_tried() -> None:
    runner, tower = ladder(), Tower(eager_because="it reads sizes on the host")
    for _ in range(2):
        encode(runner, tower, 2)
    assert tower.seen == [2, 2]
    assert runner.report.ran == {(PHASE, "eager"): 2}
    assert runner.report.refused == {(PHASE, RefusalReason.BODY): 2}
    assert refused(runner).numbers == "it reads sizes on the host"
    answer = runner.admit(PHASE, PhaseShape.of_media(2))
    assert isinstance(answer, Refused)
    encode(runner, Tower(), 2)
    assert isinstance(runner.admit(PHASE, PhaseShape.of_media(2)), Admitted)


def test_a_body_that_cannot_be_captured_is_run_directly_and_told_with_the_line() -> None:
    runner, tower = ladder(), Tower(read)
    for items in (1, 3):
        encode(runner, tower, items)
    assert runner.report.ran == {(PHASE, "eager"): 3}
    assert "bodies.py:" in refused(runner).numbers
    assert "reads a value on the host" in refused(runner).numbers
    calls = len(tower.seen)
    encode(runner, tower, 1)
    assert len(tower.seen) == calls + 1, "it is not tried again"
    with pytest.raises(CaptureError, match=r"media encode at 2 items.*reads a value on the host"):
        ladder().capture(PHASE, Tower(read), [PhaseShape.of_media(2)], PLANNER)


def test_attention_is_not_for_bodies_of_media() -> None:
    def attending(buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        x = buffers["pixels"][:, None]
        return {"rows": calls.attend(3, x, x, x)}

    class Attending(Tower):
        def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
            return attending(buffers, calls)

    for runner in (None, EagerRunner(), ladder()):
        with pytest.raises(ConformanceError, match=r"attends to KV memory in layer 3 with 2 rows"):
            encode_media(Attending(), given(2), runner)
    with pytest.raises(ConformanceError):
        attending(given(1), media_calls())


def test_a_worker_for_rounds_encodes_directly() -> None:
    for role in Role:
        runner, tower = ladder(role=role), Tower()
        encode(runner, tower, 2)
        served = role is not Role.DECODE
        assert runner.report.ran == {(PHASE, "media" if served else "eager"): 1}
        assert (runner.sizes.media, runner.sizes.media_left_out) == (served, not served)
        shape = PhaseShape.of_media(2)
        assert isinstance(runner.admit(PHASE, shape), Admitted) == served
        assert bool(runner.capture(PHASE, tower, [shape], PLANNER)) == served
        if not served:
            assert (refused(runner).reason, refused(runner).by) == (RefusalReason.ROLE, "")
            assert "media encode of 2 items, on a worker for decode only" in refused(runner).numbers


def test_a_device_without_graphs() -> None:
    runner, tower = ladder(NoGraphs()), Tower()
    encode(runner, tower, 3)
    assert runner.report.ran == {(PHASE, "eager"): 2}
    assert refused(runner).reason is RefusalReason.DEVICE
    assert tower.seen == [2, 1]


def test_memory_that_does_not_suffice_costs_that_size_alone() -> None:
    medium = FailingMedium(lambda number: torch.OutOfMemoryError("no memory left") if number == 1 else None)
    runner, tower = ladder(medium), Tower()
    for items in (4, 4, 1, 5):
        encode(runner, tower, items)
    assert runner.report.ran == {(PHASE, "eager"): 3, (PHASE, "media"): 2}
    assert runner.report.refused == {(PHASE, RefusalReason.MEMORY): 3}
    assert refused(runner).numbers == "media encode at 4 items: no memory left"


def test_an_interrupt_in_the_middle_of_a_capture() -> None:
    medium = FailingMedium(lambda number: KeyboardInterrupt() if number == 1 else None)
    runner, tower = ladder(medium), Tower(outside=True)
    with pytest.raises(KeyboardInterrupt):
        encode(runner, tower, 2)
    encode(runner, tower, 2)
    assert runner.report.ran == {(PHASE, "media"): 1}, "it is tried again"


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            {},
            r"no input of a body of media has items: given are none, declared are 'pixels' \(requests\), 'scale' \(none\)",
        ),
        ({"pixels": torch.zeros(0, 3), "scale": torch.zeros(3)}, "at least one item"),
        ({"pixels": torch.zeros(2, 3)}, "'scale' is declared but was not given"),
        ({"pixels": torch.zeros(2, 4), "scale": torch.zeros(3)}, r"'pixels' is \[2, 4\] .*, declared is \[2, 3\]"),
    ],
)
def test_inputs_that_are_not_what_the_body_declares(inputs: Mapping[str, Tensor], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        ladder().run_media(Tower(), inputs)


def test_outputs_that_are_not_what_the_body_declares() -> None:
    wrong = Tower(outputs=(BufferSlot("rows", Axis.REQUESTS, (2, 4), torch.float32),))
    with pytest.raises(
        ConformanceError, match=r"media encode at 2 items.*'rows' is \[2, 2, 3\].*declared is \[2, 2, 4\]"
    ):
        ladder().run_media(wrong, given(2))


def test_buffers_that_count_tokens_have_no_size_at_a_number_of_items() -> None:
    runner, tower = ladder(), Tower(inputs=(PIXELS, evolve(X, name="scale", trailing=())))
    encode(runner, tower, 2)
    assert runner.report.ran == {(PHASE, "eager"): 1}
    assert "buffers scale of media encode count tokens" in refused(runner).numbers


def test_closed() -> None:
    for runner in (ladder(), EagerRunner()):
        encode(runner, Tower(), 1)
        runner.close()
        with pytest.raises(ClosedError, match="cannot run media encode"):
            encode(runner, Tower(), 1)
        answer = runner.admit(PHASE, PhaseShape.of_media(1))
        assert isinstance(answer, Refused)
        assert answer.reason is RefusalReason.CLOSED
