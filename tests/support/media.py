"""Media for tests of runners: tapes that fail on cue, graphs that are quick to make, and a device without graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from attrs import define, field
from torch import Tensor

from outrider.interfaces import Break, Captured, Work
from outrider_backends.tape import TapeMedium

__all__ = ["AgainMedium", "FailingMedium", "NoGraphs"]


@define
class FailingMedium:
    """Tapes, but where ``fail`` (asked with the number of the capture, from 1) gives an error, it is raised ``when`` said."""

    fail: Callable[[int], BaseException | None]
    when: Literal["before", "at a break", "after", "captured"] = "after"
    inner: TapeMedium = field(factory=lambda: TapeMedium(debug=True))
    captures: int = 0

    @property
    def name(self) -> str:
        return "failing tape"

    def refuses(self, device: torch.device) -> str | None:
        return None

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Captured:
        self.captures += 1
        error = self.fail(self.captures)
        if error is not None and self.when == "before":
            raise error
        raised, runs = error, 0

        def failing(break_: Break) -> Mapping[str, Tensor]:
            nonlocal runs
            runs += 1
            if raised is None or self.when == "captured" or (warm and runs == 1):  # the warm-up passes
                return work(break_)

            def breaking(eager: Callable[[], None]) -> None:
                if self.when == "at a break":
                    raise failure
                break_(eager)

            failure = raised
            work(breaking)
            raise failure

        made = self.inner.capture(failing, inputs, device=device, what=what, warm=warm, vary=vary)
        if error is not None:
            made.close()
            raise error
        return made


class NoGraphs:
    """A device that has no graphs."""

    name: str = "none"

    def refuses(self, device: torch.device) -> str | None:
        return f"{device} has no graphs"

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Captured:
        raise AssertionError("what refuses a device is not asked to capture on it")


class Again:
    """A graph that does its work by doing it again, quick to make.

    Making it does the work, too, so whole rounds can only be captured while rows stand idle.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.outputs: Mapping[str, Tensor] = work(lambda eager: None)
        self.nbytes: int = 1000

    def replay(self) -> None:
        for name, tensor in self._work(lambda eager: eager()).items():
            self.outputs[name].copy_(tensor)

    def close(self) -> None: ...


class AgainMedium:
    """Makes them; fails where ``full`` says that memory does not suffice."""

    def __init__(self, full: str | None = None) -> None:
        self._full = full

    @property
    def name(self) -> str:
        return "again"

    def refuses(self, device: torch.device) -> str | None:
        return None

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Again:
        if self._full is not None and self._full in what:
            raise torch.OutOfMemoryError("no memory left on the device")
        return Again(work)
