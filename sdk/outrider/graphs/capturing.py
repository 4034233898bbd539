"""`Capturer`: captures on whichever medium the device has, and writes down what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from outrider.errors import CaptureError
from outrider.interfaces import Captured, GraphMedium, Work
from outrider.types import CaptureRecord, DispatchReport, Phase, RefusalReason, Refused

__all__ = ["Capturer", "out_of_memory", "uncapturable"]


class Capturer:
    """Captures of one runner, each recorded in its report."""

    def __init__(self, media: Sequence[GraphMedium], report: DispatchReport, *, on_demand: bool = True) -> None:
        """``media``: the first that takes a device serves it."""
        self._media = tuple(media)
        self._report = report
        self.on_demand: bool = on_demand
        """Whether a call for which there is no graph captures one."""

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Within it calls capture what they need."""
        before, self.on_demand = self.on_demand, True
        try:
            yield
        finally:
            self.on_demand = before

    def medium(self, device: torch.device, by: str) -> GraphMedium | Refused:
        """What captures work on ``device``."""
        reasons: list[str] = []
        for medium in self._media:
            reason = medium.refuses(device)
            if reason is None:
                return medium
            reasons.append(f"{medium.name}: {reason}")
        remedy = "choose the eager runner, or a device that has graphs"
        return Refused(RefusalReason.DEVICE, f"the model is on {device}; {'; '.join(reasons)}", remedy, by)

    def capture(
        self,
        phase: Phase,
        by: str,
        size: str,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Captured | Refused:
        """``work`` captured, or why the device or its memory does not allow it.

        Raises:
            CaptureError: ``work`` itself cannot be captured.
        """
        medium = self.medium(device, by)
        if isinstance(medium, Refused):
            return medium
        began = time.perf_counter()
        try:
            made = medium.capture(work, inputs, device=device, what=f"{phase.value} at {size}", warm=warm, vary=vary)
        except (torch.OutOfMemoryError, MemoryError) as error:
            return out_of_memory(error, f"{phase.value} at {size}", by)
        seconds = time.perf_counter() - began
        self._report.captured.append(CaptureRecord(phase, by, size, seconds, made.nbytes))
        return made


def out_of_memory(error: Exception, what: str, by: str) -> Refused:
    """The refusal of a capture of ``what`` that the device has no memory for."""
    remedy = "capture fewer or smaller buckets, or give the KV cache less memory"
    return Refused(RefusalReason.MEMORY, f"{what}: {error}", remedy, by)


def uncapturable(error: CaptureError, by: str) -> Refused:
    """The refusal of a body that raised ``error``."""
    remedy = "correct the lines that are named; outrider.conformance finds them"
    return Refused(RefusalReason.BODY, str(error), remedy, by)
