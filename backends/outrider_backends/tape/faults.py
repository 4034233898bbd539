"""What prevents a capture: the kinds, the line of the body that did it, and the error that says so."""

from __future__ import annotations

import sys
import traceback
from enum import Enum
from pathlib import Path

import torch
from attrs import define, field, frozen

from outrider.errors import CaptureError, Problems

__all__ = ["CaptureFault", "FaultLog", "Finding", "body_line"]

_NOT_THE_BODY = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


class CaptureFault(Enum):
    """A kind of fault: what happened, and what to write instead."""

    HOST_READ = (
        "reads a value on the host",
        "a graph replays without the host; keep the value in a tensor (torch.where, gather, masked_fill instead of .item(), "
        "bool() and if)",
    )
    DYNAMIC_SHAPE = (
        "makes a tensor whose shape depends on values",
        "a graph's shapes are fixed; keep all rows and mask them (torch.where, masked_fill, topk, sort instead of nonzero, "
        "unique and indexing by a boolean mask)",
    )
    RANDOM = (
        "draws from a random generator",
        "a graph would replay the numbers of its capture; give noise as an input buffer, or compute it from a counter "
        "(outrider.sampling.noise)",
    )
    HOST_DATA = (
        "makes a tensor from Python data",
        "a graph would copy from host memory that is gone when it replays; make the tensor once, before the body, or on the "
        "device (torch.full, zeros, arange)",
    )
    STALE_VALUE = (
        "is given a Python value that differs between two captures",
        "a graph keeps the value of its capture; hand it over in an input buffer, or compute it from one",
    )
    ESCAPED = (
        "uses memory that differs between two captures",
        "a graph keeps the addresses of its capture; make the tensor inside the body, in a buffer allocated once, or hand it "
        "over as an input",
    )
    GROWTH = (
        "is not the same in two captures of the same sizes",
        "a graph is one fixed sequence of operators; keep nothing in the body that grows or alternates from call to call",
    )
    INPUT_WRITTEN = (
        "writes to an input buffer in place",
        "inputs belong to the caller, who may read them again; write to a copy (x + 1 instead of x.add_(1))",
    )
    STORAGE = (
        "changes the memory of a tensor that exists",
        "a graph keeps addresses and shapes; write values in place (copy_) instead of resize_ or set_",
    )
    LAYOUT = (
        "makes a tensor that is not strided",
        "its memory cannot be kept for the replay; make it once, before the body",
    )

    @property
    def happened(self) -> str:
        """What the operator does."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to write instead, and why."""
        return self.value[1]


@frozen
class Finding:
    """One fault at one line; ``detail`` adds numbers."""

    fault: CaptureFault
    operator: str
    source: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.source}: {self.operator} {self.fault.happened}{detail}; {self.fault.remedy}"


@define
class FaultLog:
    """The faults of one capture, each kind once a line."""

    found: list[Finding] = field(factory=list[Finding])

    def add(self, finding: Finding) -> None:
        """Note ``finding``, unless its line has one of its kind."""
        if all((known.fault, known.source) != (finding.fault, finding.source) for known in self.found):
            self.found.append(finding)

    def raise_any(self, what: str, cause: Exception | None = None) -> None:
        """Raise everything that was found in the capture of ``what`` at once.

        Raises:
            CaptureError: something was found; ``cause`` is what the body raised after it.
        """
        if not self.found:
            return
        problems = Problems(f"{what} cannot be captured", CaptureError)
        for finding in self.found:
            problems.add(str(finding))
        try:
            problems.raise_any()
        except CaptureError as error:
            raise error from cause


def body_line() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor the tape's: the line of the body."""
    # Without a frame to start from, `walk_stack` leaves out as many as the traceback module needs on its own way there.
    here = sys._getframe()  # pyright: ignore[reportPrivateUsage] - the documented way to the present frame
    for frame, line in traceback.walk_stack(here):
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_BODY):
            return f"{name}:{line}"
    return "an unknown line"
