"""Bodies of media that keep their contract pass; each that is broken on purpose fails for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.conformance import check_target
from outrider.errors import ConformanceError
from outrider.interfaces import MediaBody, Target
from outrider.types import Axis, BodyCalls, BufferSlot
from outrider_backends.sdpa import SdpaBackend
from tests.support.bodies import Tower, read
from tests.support.toy_images import ToyMedia
from tests.support.toy_target import toy_target

SDPA = SdpaBackend()


def seeing(*bodies: MediaBody) -> Target:
    target = toy_target()
    return evolve(target, media=ToyMedia(target.stack, 46, None, bodies=bodies))


def test_sound_bodies_pass() -> None:
    """What is handed outside may read on the host; what says that it cannot be captured is not asked for more."""
    eager = Tower(counts=(), eager_because="it reads sizes", inputs=(), outputs=())
    for target in (seeing(), seeing(Tower(outside=True), eager)):
        assert "media bodies" in str(check_target(target, attention=SDPA))
    assert not eager.seen
    assert "media bodies" not in str(check_target(toy_target(), attention=SDPA))


class Changes(Tower):
    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        buffers["pixels"].add_(1)
        return super().__call__(buffers, calls)


class Forgets(Tower):
    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        rows = super().__call__(buffers, calls)["rows"]
        return {"rows": rows if rows.shape[0] > 1 else rows[:, :1]}


class Attends(Tower):
    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        x = buffers["pixels"][:, None]
        return {"rows": calls.attend(0, x, x, x)}


WIDE = BufferSlot("rows", Axis.REQUESTS, (2, 4), torch.float32)
BROKEN: Mapping[str, tuple[Callable[[], MediaBody], str]] = {
    "items that see each other": (Tower, "'rows' of 1 and of 4 items differ; an item must depend on no other"),
    "a value read back": (lambda: Tower(lambda x: x + 0 * read(x), outside=True), "makes the host wait"),
    "inputs written to": (lambda: Changes(outside=True), "changes its inputs"),
    "rows that are missing": (lambda: Forgets(outside=True), "outputs of 1 item are"),
    "rows that are not as declared": (lambda: Tower(outside=True, outputs=(WIDE,)), "outputs of 4 items are"),
    "attention": (Attends, "attends to KV memory in layer 0"),
    "no counts": (lambda: Tower(counts=()), "names no counts; name those it is run on"),
    "counts that make no sum": (lambda: Tower(counts=(2, 4)), "must ascend from 1"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_body_is_found(kind: str) -> None:
    make, says = BROKEN[kind]
    report = check_target(seeing(make()), attention=SDPA, raise_failures=False)
    assert report.failed == ("media bodies",)
    with pytest.raises(ConformanceError) as caught:
        report.raise_failures()
    assert says in str(caught.value)


def test_bodies_made_anew_are_found() -> None:
    class Forgetful(ToyMedia):
        @property
        def bodies(self) -> tuple[MediaBody, ...]:
            return (Tower(outside=True),)

    target = toy_target()
    target = evolve(target, media=Forgetful(target.stack, 46, None))
    with pytest.raises(ConformanceError, match=r"\[media bodies\] bodies are made anew"):
        check_target(target, attention=SDPA)
