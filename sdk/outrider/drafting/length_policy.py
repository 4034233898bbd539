"""`LengthPolicy`: how long the next draft should be, from measured acceptance and measured costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from outrider.types import RoundOutcome

__all__ = ["LengthPolicy"]

_RECENT = 0.05
"""Weight of one round in the running acceptance rates."""

_PRIOR = 0.7
"""Acceptance rate of a position that was never tried."""

_COSTS_KEPT = 9
_EXPLORE_EVERY = 48
_TRIALS = 3


class LengthPolicy:
    """Picks the length n in 0..max that promises the most tokens a second: (1 + Σ P(first j accepted)) / cost(n).

    Each position's acceptance rate is a running mean over the rounds that reached it; each length's cost the median of its
    last rounds, and a straight line through those of other lengths where it was not tried. Some lengths are tried first,
    and a neighbour of the best one now and then. The text never depends on any of it.

    With ``costs`` (one number per length 0..max, any unit) time is not measured: ranks that share a batch then agree.
    """

    def __init__(self, max_length: int, costs: Sequence[float] | None = None) -> None:
        self._max_length = max_length
        self._rates = [_PRIOR] * max_length
        self._seen = [0] * max_length
        self._costs = [deque[float](maxlen=_COSTS_KEPT) for _ in range(max_length + 1)]
        self._fixed = None if costs is None else tuple(costs)
        self._rounds = 0
        first = sorted({max_length, max(max_length // 2, 1), 1}, reverse=True)
        self._planned: deque[int] = deque(n for n in first for _ in range(_TRIALS))
        self._length = max_length

    @property
    def length(self) -> int:
        """The length of the next draft."""
        return self._length

    @property
    def acceptance_rates(self) -> tuple[float, ...]:
        """Per position, the share of rounds that accepted it among those that accepted all before it."""
        return tuple(self._rates)

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from a round, and settle the length of the next."""
        self._rounds += 1
        for accepted in outcome.accepted:
            for position in range(min(accepted + 1, outcome.length)):
                self._learn(position, 1.0 if accepted > position else 0.0)
        if outcome.seconds is not None:
            self._costs[outcome.length].append(outcome.seconds)
        self._length = self._next()

    def speed(self, length: int) -> float:
        """Expected tokens per unit of cost at ``length``."""
        tokens, reached = 1.0, 1.0
        for rate in self._rates[:length]:
            reached *= rate
            tokens += reached
        return tokens / self.cost(length)

    def cost(self, length: int) -> float:
        """Measured or estimated cost of a round with drafts of ``length``."""
        if self._fixed is not None:
            return self._fixed[length]
        known = {n: median(values) for n, values in enumerate(self._costs) if values}
        if length in known:
            return known[length]
        if len(known) < 2:
            return 1.0 + length
        mean_n, mean_c = sum(known) / len(known), sum(known.values()) / len(known)
        slope = sum((n - mean_n) * (c - mean_c) for n, c in known.items()) / sum((n - mean_n) ** 2 for n in known)
        return max(mean_c + max(slope, 0.0) * (length - mean_n), min(known.values()) * 0.1)

    def _learn(self, position: int, value: float) -> None:
        # A plain mean at first, the prior counting as two rounds; later rounds then weigh more than early ones.
        self._seen[position] += 1
        weight = max(_RECENT, 1.0 / (self._seen[position] + 2))
        self._rates[position] += weight * (value - self._rates[position])

    def _next(self) -> int:
        if self._planned:
            return self._planned.popleft()
        best = max(range(self._max_length + 1), key=self.speed)
        if self._rounds % _EXPLORE_EVERY == 0:
            step = 1 if (self._rounds // _EXPLORE_EVERY) % 2 else -1
            return min(max(best + step, 0), self._max_length)
        return best
