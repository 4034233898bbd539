"""A drafter that proposes what another one proposes, and keeps what was proposed after which tokens."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen

from outrider.interfaces import Drafter, DrafterParts
from outrider.types import DecodeState, Proposal
from tests.support.drafters import WrappedBuilder, WrappedDrafter

__all__ = ["Proposed", "RecordingBuilder"]


@frozen
class Proposed:
    """One row of one proposal: ``history`` ends with the root; node i stands in column i - 1 of the rest."""

    history: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    draft_len: int

    def path_to(self, node: int) -> tuple[int, ...]:
        """Drafted tokens from below the root to ``node``, itself included."""
        path: list[int] = []
        while node:
            path.append(self.tokens[node - 1])
            node = self.parents[node - 1]
        return tuple(reversed(path))

    def children_of(self, node: int) -> tuple[int, ...]:
        """Tokens of the children of ``node``, in order."""
        return tuple(token for token, parent in zip(self.tokens, self.parents, strict=True) if parent == node)


@frozen(eq=False)
class RecordingBuilder(WrappedBuilder):
    """Builds a drafter of ``inner`` that is listened to."""

    proposed: list[Proposed] = field(factory=list[Proposed])

    def build(self, parts: DrafterParts) -> Drafter:
        return _RecordingDrafter(self.inner.build(parts), self.proposed)


class _RecordingDrafter(WrappedDrafter):
    def __init__(self, inner: Drafter, proposed: list[Proposed]) -> None:
        super().__init__(inner)
        self._proposed = proposed

    def propose(self, state: DecodeState) -> Proposal:
        proposal = super().propose(state)
        self._proposed += rows_of(state, proposal)
        return proposal


def rows_of(state: DecodeState, proposal: Proposal) -> Iterator[Proposed]:
    """The rows of ``proposal`` for the present ``state``, on the host; finished rows are left out."""
    for row in range(state.num_rows):
        if not bool(state.finished[row]):
            yield Proposed(
                history=tuple(int(token) for token in state.tokens[row, : int(state.lengths[row]) + 1]),
                tokens=tuple(int(token) for token in proposal.tokens[row]),
                parents=tuple(int(parent) for parent in proposal.parents[row]),
                depths=tuple(int(depth) for depth in proposal.depths[row, 1:]),
                draft_len=int(proposal.draft_lens[row]),
            )
