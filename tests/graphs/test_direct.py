"""What is run without a graph is held to what it declares, as buffers of graphs hold it, and once for each size."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import pytest
import torch
from attrs import define, evolve, field
from torch import Tensor

from outrider.errors import ConformanceError, GraphError
from outrider.graphs import DirectCalls, Steps
from outrider.interfaces import GraphBody, GraphRunner
from outrider.types import Axis, BodyCalls, BufferSlot, Phase, Role, RoundShape, StepResult
from outrider_backends.eager import EagerRunner
from tests.graphs.ladders import PHASE, PLANNER, ladder, one_round, round_shape
from tests.support.bodies import PIXELS, SCALE, Body, Tower, X
from tests.support.planners import Doubling, uniform_batch

POSITIONS = BufferSlot("positions", Axis.TOKENS, (), torch.int64, leading=(3,))
LENGTHS = BufferSlot("lengths", Axis.REQUESTS, (), torch.int64)
BATCH = uniform_batch(2, 3)

Given = dict[str, Tensor]
Outputs = Mapping[str, Tensor]
Way = Callable[[GraphBody, Given], tuple[Outputs, GraphRunner]]


@define(eq=False)
class Reading:
    """Needs every unit of its inputs; counts how often it was called and its declaration was read."""

    returned: Mapping[str, Tensor | None] = field(factory=dict[str, Tensor | None])
    calls: int = 0
    asked: int = 0

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        self.asked += 1
        return (X, POSITIONS, LENGTHS)

    outputs: tuple[BufferSlot, ...] = (X, evolve(X, name="y", trailing=()))

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        self.calls += 1
        x = buffers["x"]
        made: dict[str, Tensor | None] = {"x": 2 * x, "y": buffers["positions"].sum(0).float(), **self.returned}
        return {name: tensor for name, tensor in made.items() if tensor is not None}


def inputs(**changes: Tensor | None) -> Given:
    positions, lengths = torch.arange(18).view(3, 6), torch.tensor([1, 2])
    given: dict[str, Tensor | None] = {"x": torch.randn(6, 2), "positions": positions, "lengths": lengths, **changes}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def eagerly(body: GraphBody, given: Given) -> tuple[Outputs, GraphRunner]:
    runner = EagerRunner()
    return runner.run(PHASE, body, given, BATCH, PLANNER), runner


def down_the_ladder(body: GraphBody, given: Given) -> tuple[Outputs, GraphRunner]:
    runner = ladder(steps=Steps(rounds=False, phases=False, breakable=False))
    return runner.run(PHASE, body, given, BATCH, PLANNER), runner


def in_a_round(body: GraphBody, given: Given) -> tuple[Outputs, GraphRunner]:
    runner, found = ladder(), dict[str, Tensor]()

    def step(shape: RoundShape) -> StepResult:
        found.update(runner.run(PHASE, body, given, BATCH, PLANNER))
        return one_round(shape)

    runner.run_round(round_shape(), step)
    return found, runner


WAYS = pytest.mark.parametrize("way", [eagerly, down_the_ladder, in_a_round])


@WAYS
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"positions": torch.zeros(3, 6)}, r"'positions' is \[3, 6\] torch.float32, declared is \[3, 6\] torch.int64"),
        ({"positions": None}, "'positions' is declared but was not given; given are x, lengths"),
        ({"typo": torch.zeros(6)}, "'typo' was given, declared are x, positions, lengths"),
        (
            {"x": torch.zeros(7, 2)},
            r"'x' is \[7, 2\] .*, declared is \[6, 2\] .* for 6 tokens of 2 requests \(tokens\)",
        ),
        ({"lengths": torch.ones(6, dtype=torch.int64)}, r"'lengths' is \[6\] .*, declared is \[2\] .*\(requests\)"),
        ({"x": torch.zeros(6, 3), "lengths": None}, "2 problems"),
        ({"x": torch.zeros(6, 2, device="meta")}, "'x' is on meta, the call on cpu"),
    ],
)
def test_inputs_that_a_buffer_would_refuse_are_refused(way: Way, changes: dict[str, Tensor | None], says: str) -> None:
    body = Reading()
    with pytest.raises(GraphError, match=f"(?s)inputs of target verify at 6 tokens, 2 requests of 3 queries.*{says}"):
        way(body, inputs(**changes))
    assert not body.calls


@WAYS
@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"y": None}, "'y' is declared and not returned; returned are x"),
        ({"z": torch.zeros(6)}, "'z' is returned and not declared"),
        ({"y": torch.zeros(2)}, r"'y' is \[2\] .*, declared is \[6\]"),
        ({"x": torch.zeros(6, 2, dtype=torch.float64)}, "torch.float64, declared is .*torch.float32"),
    ],
)
def test_outputs_that_are_not_declared_are_refused(way: Way, returned: dict[str, Tensor | None], says: str) -> None:
    with pytest.raises(ConformanceError, match=f"outputs of target verify at 6 tokens, 2 requests.*{says}"):
        way(Reading(returned), inputs())


@WAYS
def test_what_is_as_declared_is_run_on_the_inputs_themselves(way: Way) -> None:
    given = inputs()
    found, runner = way(Reading(), given)
    assert torch.equal(found["x"], 2 * given["x"])
    assert torch.equal(found["y"], given["positions"].sum(0).float())
    assert runner.report.ran[PHASE, "eager"] == 1


@pytest.mark.parametrize("body", [Body(inputs=(X, X)), Body(outputs=(X, X))], ids=["inputs", "outputs"])
def test_a_name_is_declared_once(body: Body) -> None:
    with pytest.raises(GraphError, match="buffers x are declared more than once"):
        eagerly(body, {"x": torch.zeros(6, 2)})


def test_each_size_is_checked_once_and_every_other_anew() -> None:
    body, direct, calls = Reading(), DirectCalls(), BodyCalls(Doubling().attend)
    for _ in range(3):
        direct.run(PHASE, body, inputs(), BATCH, calls)
    assert (body.asked, body.calls) == (1, 3)
    with pytest.raises(GraphError, match=r"\[3, 6\] torch.int32"):
        direct.run(PHASE, body, inputs(positions=torch.zeros(3, 6, dtype=torch.int32)), BATCH, calls)
    for batch in (uniform_batch(3, 2), uniform_batch(1, 4)):
        with pytest.raises(GraphError, match=r"'lengths' is \[2\]"):
            direct.run(PHASE, body, inputs(), batch, calls)
    direct.run(PHASE, body, inputs(), BATCH, calls)
    assert (body.asked, body.calls) == (4, 4)


def test_what_failed_is_checked_again() -> None:
    body, direct, calls = Reading({"y": None}), DirectCalls(), BodyCalls(Doubling().attend)
    for _ in range(2):
        with pytest.raises(ConformanceError, match="'y' is declared and not returned"):
            direct.run(PHASE, body, inputs(), BATCH, calls)


def test_bodies_are_kept_until_they_are_cleared_or_there_are_too_many() -> None:
    """Else a later body at the place of one that is gone would pass for it."""
    direct, calls = DirectCalls(), BodyCalls(Doubling().attend)

    def run_new() -> weakref.ref[Reading]:
        body = Reading()
        direct.run(PHASE, body, inputs(), BATCH, calls)
        return weakref.ref(body)

    kept = run_new()
    assert kept() is not None
    direct.clear()
    assert kept() is None
    bodies = [run_new() for _ in range(1100)]
    assert sum(body() is not None for body in bodies) < 1024


def eager_media(tower: Tower, given: Given) -> Outputs:
    return EagerRunner().run_media(tower, given)


def media_down_the_ladder(tower: Tower, given: Given) -> Outputs:
    return ladder(role=Role.DECODE).run_media(tower, given)


@pytest.mark.parametrize("way", [eager_media, media_down_the_ladder])
def test_media_are_held_to_it_as_well(way: Callable[[Tower, Given], Outputs]) -> None:
    pixels, scale = torch.randn(2, 3), torch.randn(3)
    found = way(Tower(), {"pixels": pixels, "scale": scale})["rows"]
    assert torch.equal(found, Tower()({"pixels": pixels, "scale": scale}, BodyCalls(Doubling().attend))["rows"])
    for given, says in (
        ({"pixels": pixels}, "'scale' is declared but was not given"),
        ({"pixels": pixels.double(), "scale": scale}, r"'pixels' is \[2, 3\] torch.float64"),
        ({"scale": scale}, "no input of a body of media has items"),
        ({"pixels": pixels, "scale": scale, "more": scale}, "'more' was given"),
    ):
        tower = Tower()
        with pytest.raises(GraphError, match=says):
            way(tower, given)
        assert not tower.seen
    wide = Tower(outputs=(BufferSlot("rows", Axis.REQUESTS, (2, 4), torch.float32),))
    with pytest.raises(ConformanceError, match=r"media encode at 2 items.*'rows' is \[2, 2, 3\]"):
        way(wide, {"pixels": pixels, "scale": scale})


@pytest.mark.parametrize(
    "tower",
    [
        Tower(eager_because="it reads sizes on the host", inputs=(), outputs=()),
        Tower(inputs=(PIXELS, evolve(SCALE, axis=Axis.TOKENS, trailing=()))),
    ],
    ids=["declared eager", "counts tokens"],
)
def test_media_that_no_runner_captures_are_not(tower: Tower) -> None:
    runner, given = EagerRunner(), {"pixels": torch.randn(2, 3), "scale": torch.randn(3)}
    for _ in range(2):
        assert runner.run_media(tower, given)["rows"].shape == (2, 2, 3)
    assert tower.seen == [2, 2]
    assert runner.report.ran == {(Phase.MEDIA_ENCODE, "eager"): 2}
