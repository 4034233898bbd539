"""Whatever a graph cannot hold fails the capture, with the line that did it and what to write instead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider._torch import int_rows
from outrider.errors import CaptureError, GraphError, OutriderError
from outrider.interfaces import Break
from outrider_backends.tape import Tape
from outrider_backends.tape.faults import CaptureFault
from tests.backends.tape.bad_bodies import BAD, Body, faulty_line
from tests.support.toy_target import CPU


def capture(body: Body) -> Tape:
    x, ids = torch.ones(4, 3), torch.arange(4)

    def vary() -> None:
        x.fill_(2.0)
        ids.fill_(1)

    inputs = {"x": x, "ids": ids}
    return Tape.capture(lambda break_: {"y": body(x, ids)}, inputs, device=CPU, what="target verify", vary=vary)


@pytest.mark.parametrize("name", BAD)
def test_the_line_and_the_remedy_are_named(name: str) -> None:
    make, says = BAD[name]
    with pytest.raises(CaptureError) as caught:
        capture(make())
    message = str(caught.value)
    assert message.startswith("target verify cannot be captured: ")
    [fault] = [fault for fault in CaptureFault if says in fault.happened]
    named = [line for line in message.split("\n") if faulty_line(name) in line]
    assert any(fault.happened in line and line.endswith(fault.remedy) for line in named)


def test_all_faulty_lines_at_once() -> None:
    def several(x: Tensor, ids: Tensor) -> Tensor:
        x = x * x.sum().item()
        for _ in range(3):
            x = x + torch.rand(3)
        return x.add_(ids.max())

    with pytest.raises(CaptureError, match="2 problems") as caught:
        capture(several)
    assert str(caught.value).count("draws from a random generator") == 1, "each line is named once"


def test_what_the_body_raises_after_a_fault_does_not_hide_it() -> None:
    def by_mask(x: Tensor, ids: Tensor) -> Tensor:
        return x[ids == ids.max()].view(4, 3)  # one row once, all of them the next time

    with pytest.raises(CaptureError, match="whose shape depends on values") as caught:
        capture_from_first(by_mask)
    assert isinstance(caught.value.__cause__, RuntimeError)


def capture_from_first(body: Body) -> Tape:
    """The warm-up passes, the first recording fails."""
    x, ids = torch.ones(4, 3), torch.ones(4, dtype=torch.int64)
    runs: list[int] = []

    def once(break_: Break) -> dict[str, Tensor]:
        runs.append(0)
        if len(runs) == 2:
            ids.copy_(torch.arange(4))
        return {"y": body(x, ids)}

    return Tape.capture(once, {"x": x}, device=CPU)


def test_what_the_body_raises_without_a_fault_comes_as_it_is() -> None:
    def broken(x: Tensor, ids: Tensor) -> Tensor:
        return x @ x

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        capture(broken)


def test_outputs_that_change_their_names() -> None:
    names = iter("abc")
    x = torch.ones(2)
    with pytest.raises(CaptureError, match=r"outputs \['b'\] the first time, \['c'\] the second"):
        Tape.capture(lambda break_: {next(names): x * 2}, {"x": x}, device=CPU)


def test_breaks_that_differ() -> None:
    counts = iter((0, 1, 2))
    x = torch.ones(2)

    def more_and_more(break_: Break) -> dict[str, Tensor]:
        for _ in range(next(counts)):
            break_(lambda: None)
        return {"y": x * 2}

    with pytest.raises(CaptureError, match="1 break the first time, 2 the second"):
        Tape.capture(more_and_more, {"x": x}, device=CPU)


def test_breaks_that_move() -> None:
    first = iter((True, True, False))
    x = torch.ones(2)

    def moving(break_: Break) -> dict[str, Tensor]:
        early = next(first)
        if early:
            break_(lambda: None)
        y = x * 2
        if not early:
            break_(lambda: None)
        return {"y": y}

    with pytest.raises(CaptureError, match="or at other places"):
        Tape.capture(moving, {"x": x}, device=CPU)


def test_the_error_tree() -> None:
    assert issubclass(CaptureError, GraphError)
    assert issubclass(GraphError, OutriderError)


@pytest.mark.parametrize("name", BAD)
def test_a_failed_capture_leaves_torch_as_it_was(name: str) -> None:
    with pytest.raises(CaptureError):
        capture(BAD[name][0]())
    assert torch.ones(2).sum().item() == 2.0
    assert int_rows(torch.tensor([[1, 2]])) == [[1, 2]]
    assert not torch.is_inference_mode_enabled()
