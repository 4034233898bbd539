"""No drafting: the round is then plain decoding, with the same code."""

from __future__ import annotations

import torch

from outrider.drafting.chain_proposal import ChainLayout
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["NoDrafter"]


class NoDrafter:
    """Proposes chains of length zero."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._layout = ChainLayout(0, num_rows, device)
        self._tokens = torch.zeros(num_rows, 0, dtype=torch.int64, device=device)
        self._lens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._proposals: dict[int, Proposal] = {}

    @property
    def shape(self) -> TreeShape:
        """A chain of zero tokens."""
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """None: it learns nothing."""
        return ()

    @property
    def runs_on_host(self) -> bool:
        """No: device only."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Nothing to learn."""

    def propose(self, state: DecodeState) -> Proposal:
        """The empty proposal; the same object for as many rows."""
        rows = state.num_rows
        proposal = self._proposals.get(rows)
        if proposal is None:
            proposal = self._proposals[rows] = self._layout.proposal(self._tokens[:rows], self._lens[:rows])
        return proposal

    def move_row(self, source: int, destination: int) -> None:
        """Nothing is kept per row."""
