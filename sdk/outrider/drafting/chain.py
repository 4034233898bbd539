"""`ChainDrafter`: a draft model proposes its most probable token, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.drafting.chain_proposal import ChainLayout
from outrider.drafting.limits import draft_lengths
from outrider.drafting.memory import DraftMemory
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["ChainDrafter"]


class ChainDrafter:
    """Greedy chains of ``length`` tokens from a bound draft (EAGLE's chain; a tree of width 1)."""

    def __init__(self, memory: DraftMemory, length: int, num_rows: int) -> None:
        self._memory = memory
        self._layout = ChainLayout(length, num_rows, memory.spec.device)

    @property
    def shape(self) -> TreeShape:
        """A chain of the given length."""
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """The taps of the draft's spec."""
        return self._memory.spec.taps

    def extend(self, rows: VerifiedRows) -> None:
        """Run the verified rows through the draft."""
        self._memory.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        """K tokens per row: the first from the newest verified pair, each further one from a draft step."""
        memory, vocab, rows = self._memory, self._memory.spec.vocab, state.num_rows
        hidden = memory.hidden[:rows]
        carried = None if memory.state is None else memory.state[:rows]
        tokens: list[Tensor] = []
        for step in range(self.shape.num_tokens):
            if step:
                output = memory.step(state, tokens[-1][:, None], carried, depth=step - 1, first_slot=step - 1)
                hidden, carried = output.hidden, output.state
            tokens.append(vocab.to_target(memory.draft.logits(hidden).argmax(dim=-1)))
        limit = draft_lengths(state, self.shape, memory.spec.max_positions)
        return self._layout.proposal(torch.stack(tokens, dim=1), limit)

    def move_row(self, source: int, destination: int) -> None:
        """Copy what is kept for a row."""
        self._memory.move_row(source, destination)
