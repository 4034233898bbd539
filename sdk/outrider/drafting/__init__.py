"""Drafters: what proposes the tokens that the target verifies. `outrider.interfaces` has the seam itself."""

from __future__ import annotations

from outrider.drafting.chain_proposal import ChainLayout
from outrider.drafting.histories import histories
from outrider.drafting.limits import draft_lengths
from outrider.drafting.memory import DraftMemory

__all__ = ["ChainLayout", "DraftMemory", "draft_lengths", "histories"]
