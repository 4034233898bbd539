"""`Refusals`: what graphs of one kind do not serve, remembered, so that every later call is told the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
from attrs import frozen

from outrider.errors import CaptureError
from outrider.graphs.capturing import out_of_memory, uncapturable
from outrider.interfaces import GraphBody
from outrider.types import CaptureHiddenMode, Phase, PhaseShape, RefusalReason, Refused

__all__ = ["Refusals"]

G = TypeVar("G")


@frozen(eq=False)
class _Lost:
    """A body that cannot be captured, kept so that its id stays its own."""

    refused: Refused
    body: GraphBody


class Refusals:
    """Bodies that cannot be captured, sizes that the device has no memory for, and hidden states that graphs do not give."""

    def __init__(self, by: str, modes: Mapping[Phase, CaptureHiddenMode]) -> None:
        """``by``: the kind, as reports have it. ``modes``: which hidden states its graphs give, FULL where none is named."""
        self._by = by
        self._modes = modes
        self._lost: dict[tuple[Phase, int], _Lost] = {}
        self._sizes: dict[Hashable, Refused] = {}

    def mode(self, phase: Phase) -> CaptureHiddenMode:
        """Which hidden states graphs of ``phase`` give."""
        return self._modes.get(phase, CaptureHiddenMode.FULL)

    def of_hidden(self, phase: Phase, shape: PhaseShape) -> Refused | None:
        """Why a call that wants more hidden states than graphs of ``phase`` give is not served."""
        mode = self.mode(phase)
        if shape.hidden <= mode:
            return None
        numbers = f"{phase.value} is captured with hidden states {mode.name}, asked is {shape.hidden.name}"
        remedy = f"build the runner with {shape.hidden.name} for this phase"
        return Refused(RefusalReason.HIDDEN_MODE, numbers, remedy, self._by)

    def of_phase(self, phase: Phase) -> Refused | None:
        """Why the newest body of ``phase`` that cannot be captured could not be."""
        return next((lost.refused for (of, _), lost in reversed(self._lost.items()) if of is phase), None)

    def of_body(self, phase: Phase, body: GraphBody) -> Refused | None:
        """Why ``body`` cannot be captured."""
        lost = self._lost.get((phase, id(body)))
        return None if lost is None else lost.refused

    def of_size(self, size: Hashable) -> Refused | None:
        """Why nothing is captured at ``size``."""
        return self._sizes.get(size)

    def not_captured(self, numbers: str) -> Refused:
        """The refusal of a call that no graph holds, where none is captured on demand."""
        remedy = "capture the shape before it is run, or let the runner capture on demand"
        return Refused(RefusalReason.NOT_CAPTURED, numbers, remedy, self._by)

    def lose(self, phase: Phase, body: GraphBody, refused: Refused) -> Refused:
        """``refused``, from now on for every call of ``body``."""
        self._lost[phase, id(body)] = _Lost(refused, body)
        return refused

    def capturing(
        self, phase: Phase, body: GraphBody, size: Hashable, what: str, capture: Callable[[], G | Refused]
    ) -> G | Refused:
        """What ``capture`` makes of ``what``; that it cannot be made is remembered.

        Raises:
            CaptureError: ``body`` cannot be captured.
        """
        try:
            made = capture()
        except CaptureError as error:
            self.lose(phase, body, uncapturable(error, self._by))
            raise
        except torch.OutOfMemoryError as error:  # of buffers, or of a plan
            made = out_of_memory(error, what, self._by)
        if isinstance(made, Refused):
            self._sizes[size] = made
        return made

    def clear(self) -> None:
        """Let every body go."""
        self._lost.clear()
