"""Bodies of media are captured ahead at their counts, with prompts; what cannot be is told."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from outrider.errors import ClosedError
from outrider.graphs import LadderRunner, encode_media
from outrider.interfaces import MediaBody, Target
from outrider.loop.engine import Engine
from outrider.types import CaptureRecord, Phase, RefusalReason, Role
from outrider_backends.eager import EagerRunner
from tests.loop.captures import BUILDERS, SAMPLED, SMALL, STEPS, TARGET, engine, outcome, requests, runner, tapes
from tests.support.bodies import Tower, read
from tests.support.media import NoGraphs
from tests.support.toy_images import ToyMedia

PHASE = Phase.MEDIA_ENCODE


def seeing(*bodies: MediaBody) -> Target:
    return evolve(TARGET, media=ToyMedia(TARGET.stack, 46, None, bodies=bodies))


def encode(made: Engine, tower: Tower, items: int) -> None:
    inputs = {"pixels": torch.randn(items, 3), "scale": torch.randn(3)}
    assert torch.equal(encode_media(tower, inputs, made.runner)["rows"], encode_media(tower, inputs)["rows"])


@pytest.mark.parametrize("steps", STEPS)
def test_no_prompt_with_media_captures_anything_afterwards(steps: str) -> None:
    tower, other = Tower(), Tower(torch.abs, counts=(1, 3))
    made = engine(runner(STEPS[steps]), target=seeing(tower, other), options=SMALL)
    summary = made.capture()
    assert (summary.unserved, summary.left_out) == ((), 0)
    media = [each for each in summary.captured if each.phase is PHASE]
    assert [(each.by, each.size) for each in media] == [
        ("media", f"{items} item{'' if items == 1 else 's'}") for items in (4, 2, 1, 3, 1)
    ]
    assert summary.by_kind["media"].graphs == 5
    for items in range(1, 8):
        encode(made, tower, items)
        encode(made, other, items)
    assert made.report.captured == list(summary.captured)
    assert (PHASE, "eager") not in made.report.ran


def test_they_are_sizes_like_others_and_leave_no_trace() -> None:
    told: list[tuple[int, int, tuple[CaptureRecord, ...]]] = []
    made = engine(runner(), BUILDERS["chain"], target=seeing(Tower()), options=SMALL)
    plain = engine(runner(), BUILDERS["chain"], options=SMALL)
    summary = made.capture(lambda done, total, captured: told.append((done, total, tuple(captured))))
    without = plain.capture()
    assert summary.sizes == without.sizes + 3
    assert [done for done, _, _ in told] == list(range(1, summary.sizes + 1))
    assert [[each.phase for each in captured] for _, _, captured in told[:3]] == [[PHASE]] * 3
    assert [each.size for each in summary.captured if each.phase is not PHASE] == [
        each.size for each in without.captured
    ]
    assert not made.report.ran
    assert outcome(made, requests(SAMPLED)[:2]) == outcome(plain, requests(SAMPLED)[:2])


def test_a_role_for_rounds_leaves_them_to_others() -> None:
    target = seeing(Tower())
    both, prefill, decode = (
        engine(runner(role=role), target=target).capture() for role in (Role.BOTH, Role.PREFILL, Role.DECODE)
    )
    assert [sum(each.phase is PHASE for each in summary.captured) for summary in (both, prefill, decode)] == [3, 3, 0]
    assert (prefill.sizes, decode.sizes) == (decode.left_out, prefill.left_out)
    assert both.sizes == prefill.sizes + decode.sizes


def test_a_body_that_says_that_it_cannot_be_captured_is_told_and_not_run() -> None:
    tower = Tower(eager_because="it reads sizes on the host")
    summary = engine(runner(), target=seeing(tower, Tower())).capture()
    [lost] = summary.unserved
    assert (lost.phase, lost.refused.by, lost.refused.reason) == (PHASE, "media", RefusalReason.BODY)
    assert lost.refused.numbers == "it reads sizes on the host"
    assert not tower.seen
    assert summary.by_kind["media"].graphs == 3
    assert not engine(EagerRunner(), target=seeing(tower)).capture().unserved, "nothing was to be captured"


def test_a_body_that_cannot_be_captured_is_told_with_the_line() -> None:
    summary = engine(tapes(), None, target=seeing(Tower(read)), options=SMALL).capture()
    [lost] = summary.unserved
    assert (lost.phase, lost.refused.reason, lost.sizes) == (PHASE, RefusalReason.BODY, 3)
    assert "reads a value on the host" in lost.refused.numbers
    assert {each.by for each in summary.captured} == {"breakable", "round"}


@pytest.mark.parametrize(("part", "lost"), [("media encode at 4 items", 1), ("media encode", 3)])
def test_memory_that_does_not_suffice_costs_that_size_only(part: str, lost: int) -> None:
    tower = Tower()
    made = engine(runner(full=part), None, target=seeing(tower))
    summary = made.capture()
    [unserved] = summary.unserved
    assert (unserved.phase, unserved.refused.reason, unserved.sizes) == (PHASE, RefusalReason.MEMORY, lost)
    encode(made, tower, 5)


def test_not_even_memory_for_a_direct_run() -> None:
    def full(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory left on the device")

    summary = engine(runner(), None, target=seeing(Tower(full, counts=(1,)))).capture()
    [lost] = summary.unserved
    assert (lost.phase, lost.refused.reason) == (PHASE, RefusalReason.MEMORY)
    assert "media of 1 item" in lost.refused.numbers


def test_a_device_without_graphs_is_found_at_the_first_size() -> None:
    summary = engine(LadderRunner("none", (NoGraphs(),)), None, target=seeing(Tower())).capture()
    assert summary.sizes == 1
    assert {each.refused.reason for each in summary.unserved} == {RefusalReason.DEVICE}


def test_closed_with_the_engine() -> None:
    made, tower = engine(runner(), target=seeing(Tower())), Tower()
    made.close()
    with pytest.raises(ClosedError):
        encode(made, tower, 1)
