"""How one round went, as the host learns it."""

from __future__ import annotations

from attrs import frozen

__all__ = ["RoundOutcome"]


@frozen
class RoundOutcome:
    """What one round showed: its draft length, how many drafted tokens each request accepted, and how long it took.

    ``accepted``: per request that drafted at full length. ``seconds``: ``None`` where the time means nothing (the round
    shared it with a prefill).
    """

    length: int
    accepted: tuple[int, ...]
    seconds: float | None
