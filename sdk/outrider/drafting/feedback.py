"""`RoundListeners`: what an engine tells drafters that want to know how their rounds went."""

from __future__ import annotations

from collections.abc import Callable

from outrider.types import RoundOutcome

__all__ = ["RoundListeners"]


class RoundListeners:
    """The `RoundFeedback` of an engine: hands each round's outcome, when it has arrived on the host, to those who asked."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[RoundOutcome], None]] = []

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def listen(self, listener: Callable[[RoundOutcome], None], /) -> None:
        """Call ``listener`` with every outcome from now on."""
        self._listeners.append(listener)

    def publish(self, outcome: RoundOutcome) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            listener(outcome)
