"""`Drafter`: whatever proposes tokens; it need not be a model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["Drafter"]


class Drafter(Protocol):
    """Learns from verified rows and proposes a tree of tokens below each root.

    Everything it does inside a round is device only and of static shape per (B, N).
    """

    @property
    @abstractmethod
    def shape(self) -> TreeShape:
        """Static sizes of every proposal."""
        ...

    @property
    @abstractmethod
    def taps(self) -> tuple[HiddenTap, ...]:
        """The target features it wants in `VerifiedRows.features`."""
        ...

    @abstractmethod
    def extend(self, rows: VerifiedRows) -> None:
        """Take in verified rows: once per prefill chunk, and at the end of every round."""
        ...

    @abstractmethod
    def propose(self, state: DecodeState) -> Proposal:
        """A proposal for rows 0..B-1 of ``state``; fills `Proposal.draft_lens` within the limits of the draft."""
        ...

    @abstractmethod
    def move_row(self, source: int, destination: int) -> None:
        """Copy what it keeps for batch row ``source`` to ``destination`` (between rounds)."""
        ...
