"""`Ledger`: where time goes, each moment charged to exactly one part of a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum

__all__ = ["Ledger", "Part"]


class Part(Enum):
    """What a round spends time on; `is_forward` for the passes of the two models, attention and heads included."""

    TARGET_EMBED = "target: embed"
    TARGET_LAYERS = "target: layers"
    TARGET_ATTENTION = "target: attention and KV writes"
    TARGET_LOGITS = "target: logits"
    DRAFT_EMBED = "draft: embed"
    DRAFT_EXTEND = "draft: extend with verified rows"
    DRAFT_STEP = "draft: drafted rows"
    DRAFT_ATTENTION = "draft: attention and KV writes"
    DRAFT_LOGITS = "draft: logits"
    PLANNING = "attention plans (gathers and masks)"
    PROPOSE = "propose: choose tokens, grow the tree"
    VERIFY = "verify: lay out the target's batch"
    ACCEPT = "accept: the verifier"
    EXTEND = "extend: lay out the draft's batch"
    COMMIT = "commit: move KV, advance the state"
    HOST = "host: rows, readback, bookkeeping"

    @property
    def is_forward(self) -> bool:
        """Whether it belongs to a forward pass of target or draft."""
        return self.value.startswith(("target: ", "draft: "))


class Ledger:
    """Seconds by part. Parts nest; a part that runs inside another is taken out of the outer one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[Part] = []
        self._charged_until = 0.0
        self.seconds: dict[Part, float] = dict.fromkeys(Part, 0.0)

    def enter(self, part: Part) -> None:
        """From now on time is charged to ``part``."""
        self._charge()
        self._open.append(part)

    def leave(self) -> None:
        """The innermost part ends; the one around it goes on."""
        self._charge()
        self._open.pop()

    def turn_to(self, part: Part) -> None:
        """The innermost part ends and ``part`` takes its place; nothing where no part is open."""
        if self._open:
            self._charge()
            self._open[-1] = part

    @contextmanager
    def within(self, part: Part) -> Generator[None]:
        """``part`` for the length of a block."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def clear(self) -> None:
        """Forget what was charged so far."""
        self.seconds = dict.fromkeys(Part, 0.0)

    @property
    def total(self) -> float:
        """Seconds charged to all parts."""
        return sum(self.seconds.values())

    @property
    def forward_share(self) -> float:
        """Share of the total that went to forward passes; 0 where nothing was charged."""
        forward = sum(seconds for part, seconds in self.seconds.items() if part.is_forward)
        return forward / self.total if self.total else 0.0

    def _charge(self) -> None:
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._charged_until
        self._charged_until = now
