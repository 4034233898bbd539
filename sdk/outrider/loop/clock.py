"""`RoundClock`: how long rounds take and what they accept, for drafters that adapt."""

from __future__ import annotations

import time
from collections.abc import Sequence

from outrider.drafting.feedback import RoundListeners
from outrider.loop.advance import RowReport, RowStatus
from outrider.loop.readback import PendingResult
from outrider.types import RoundOutcome

__all__ = ["RoundClock"]


class RoundClock:
    """Turns arrived results into outcomes. Costs nothing where nobody listens.

    Where results are read at once a round lasts from its launch to its arrival. Where the host runs behind, from one arrival
    to the next; a round that follows prompts then has no time of its own.
    """

    def __init__(self, feedback: RoundListeners, rounds_in_flight: int) -> None:
        self._feedback = feedback
        self._at_once = rounds_in_flight == 0
        self._last_arrival: float | None = None

    def arrived(self, pending: PendingResult, reports: Sequence[RowReport]) -> None:
        """Note a result that has just arrived."""
        if not self._feedback.wanted:
            return
        now = time.perf_counter()
        if pending.phase == "verify":
            # A pass over prompts of which none ends gives no result that would be seen here.
            last = None if pending.after_prompts else self._last_arrival
            since = pending.started if self._at_once else last
            self._last_arrival = now
            accepted = tuple(each.accept_length - 1 for each in reports if each.status is RowStatus.RUNNING)
            seconds = None if since is None else now - since
            self._feedback.publish(RoundOutcome(pending.growth - 1, accepted, seconds))
