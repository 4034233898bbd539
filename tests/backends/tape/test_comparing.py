"""Two recordings are the same where a replay would do the same: views found made are no difference, their places are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.errors import CaptureError
from outrider.interfaces import Break
from outrider_backends.tape import Tape
from tests.support.toy_target import CPU

STATE = torch.arange(12.0).view(4, 3)


def capture(body: Callable[[Tensor, Break], dict[str, Tensor]], x: Tensor) -> Tape:
    return Tape.capture(lambda break_: body(x, break_), {"x": x}, device=CPU)


class Viewing:
    """Reads rows of a state that stays where it is, through views that it keeps; ``first`` says from which row on."""

    def __init__(self, first: Callable[[int], int], forget: int) -> None:
        """``forget``: the run before which the views are let go, as when a row changes."""
        self._first, self._forget, self._runs = first, forget, 0
        self._views: list[Tensor] = []

    def __call__(self, x: Tensor, break_: Break) -> dict[str, Tensor]:
        self._runs += 1
        if self._runs == self._forget:
            self._views.clear()
        if not self._views:
            self._views.append(STATE[self._first(self._runs) :][:2].t())
        break_(lambda: None)
        return {"y": x @ self._views[0]}


@pytest.mark.parametrize("forget", [0, 1, 2, 3])
def test_views_that_one_recording_found_and_the_other_made(forget: int) -> None:
    """Runs are the warm-up and two recordings."""
    x = torch.ones(3)
    tape = capture(Viewing(lambda run: 1, forget), x)
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    tape.replay()
    assert torch.equal(tape.outputs["y"], x @ STATE[1:3].t())


@pytest.mark.parametrize("forget", [2, 3])
def test_views_that_lie_elsewhere_are_refused(forget: int) -> None:
    """Made anew before either recording: of the second alone, or of the first and kept."""
    if forget == 2:
        capture(Viewing(lambda run: int(run > 1), forget), torch.ones(3))
        return
    with pytest.raises(CaptureError, match="a tensor lies differently in its memory"):
        capture(Viewing(lambda run: int(run > 1), forget), torch.ones(3))


def test_an_output_that_is_another_of_the_same_tensors() -> None:
    turns = iter(range(9))

    def alternating(x: Tensor, break_: Break) -> dict[str, Tensor]:
        pair = x * 2, x * 3
        return {"y": pair[next(turns) % 2]}

    with pytest.raises(CaptureError, match="y: another of its tensors the second time"):
        capture(alternating, torch.ones(3))
