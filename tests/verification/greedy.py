"""A verifier for greedy requests alone, as a reference: the target's most probable token decides at every node."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from outrider.types import Acceptance, DecodeState, Proposal
from outrider.verification.walk import follow_choices

__all__ = ["GreedyVerifier"]


class GreedyVerifier:
    """Accepts the path of the target's own argmax: output equals greedy decoding token for token."""

    @property
    def guarantee(self) -> Literal["same tokens"]:
        """Greedy output is the target's own."""
        return "same tokens"

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted path for ``logits [B, N + 1, V]``; NaN anywhere in a row shows in its maximum."""
        best, choice = logits.max(dim=-1)
        return follow_choices(proposal, choice, best.isfinite())
