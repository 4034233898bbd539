"""What capturing ahead runs: sizes of media, prompts, rounds and passes in them."""

from __future__ import annotations

from attrs import frozen

from outrider.interfaces import MediaBody
from outrider.types import Phase
from outrider.types.counts import counted

__all__ = ["CaptureSize", "MediaSize", "PassSize", "PromptSize", "RoundSize"]


@frozen(eq=False)
class MediaSize:
    """So many ``items`` at once through a body of media."""

    body: MediaBody
    items: int
    phase: Phase = Phase.MEDIA_ENCODE

    def __str__(self) -> str:
        return f"media of {counted(self.items, 'item')}"


@frozen
class PromptSize:
    """Prompts of so many ``tokens`` together."""

    tokens: int
    phase: Phase = Phase.TARGET_PREFILL

    def __str__(self) -> str:
        return f"prompts of {counted(self.tokens, 'token')}"


@frozen
class RoundSize:
    """Rounds of so many ``requests``, of sequences of up to ``length`` tokens."""

    requests: int
    length: int
    sampled: bool
    phase: Phase = Phase.ROUND

    def __str__(self) -> str:
        how = "sampled" if self.sampled else "greedy"
        return f"{how} rounds of {counted(self.requests, 'request')} of up to {counted(self.length, 'token')}"


@frozen
class PassSize:
    """The target's passes in rounds whose drafter runs on the host."""

    requests: int
    length: int
    phase: Phase = Phase.TARGET_VERIFY

    def __str__(self) -> str:
        return f"passes over {counted(self.requests, 'request')} of up to {counted(self.length, 'token')}"


CaptureSize = MediaSize | PromptSize | RoundSize | PassSize
"""What is run once, by the phase that it is captured for."""
