"""`ChainDrafter`: a draft model proposes one token after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.drafting.chain_proposal import ChainLayout
from outrider.drafting.choosing import ProposalMode, chain_paths, draft_scores
from outrider.drafting.limits import draft_lengths
from outrider.drafting.memory import DraftMemory
from outrider.drafting.scratch import ScratchLayout
from outrider.sampling import draw_children
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.proposal import DraftDistribution
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["ChainDrafter"]


class ChainDrafter:
    """Chains of ``length`` tokens from a bound draft (EAGLE's chain; a tree of width 1)."""

    def __init__(
        self, memory: DraftMemory, length: int, num_rows: int, mode: ProposalMode = ProposalMode.COUPLED
    ) -> None:
        self._memory = memory
        self._mode = mode
        self._layout = ChainLayout(length, num_rows, memory.spec.device)
        self._scratch = ScratchLayout.chain(length - 1, memory.spec.device)

    @property
    def shape(self) -> TreeShape:
        """A chain of the given length."""
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """The taps of the draft's spec."""
        return self._memory.spec.taps

    @property
    def runs_on_host(self) -> bool:
        """No: device only."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Run the verified rows through the draft."""
        self._memory.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        """K tokens per row: the first from the newest verified pair, each further one from a draft step."""
        memory, rows = self._memory, state.num_rows
        hidden = memory.hidden[:rows]
        carried = None if memory.state is None else memory.state[:rows]
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        scratch = memory.place(state, self._scratch)
        for step in range(self.shape.num_tokens):
            if step:
                output = memory.step(state, scratch, step - 1, tokens[-1][:, None], carried)
                hidden, carried = output.hidden, output.state
            tokens.append(self._next_token(memory.draft.logits(hidden), state, tokens, probs))
        limit = draft_lengths(state, self.shape, memory.max_pairs)
        distribution = DraftDistribution(torch.stack(probs, dim=1), warped=True) if probs else None
        return self._layout.proposal(torch.stack(tokens, dim=1), limit, distribution)

    def _next_token(self, logits_BD: Tensor, state: DecodeState, tokens: list[Tensor], probs: list[Tensor]) -> Tensor:
        """Target id ``[B]`` of the next token after ``tokens``; what it was drawn from is added to ``probs``."""
        vocab = self._memory.spec.vocab
        sampled = self._mode is ProposalMode.SAMPLED
        if not (state.sampling.features.active or sampled):
            return vocab.to_target(logits_BD.argmax(dim=-1))
        scores = draft_scores(logits_BD[:, None], state, chain_paths(state, tokens), vocab, self._mode)
        if not sampled:
            return vocab.to_target(scores.argmax(dim=-1).squeeze(1))
        drawn = draw_children(scores, state, vocab, level=len(tokens), count=1)
        probs.append(drawn.probs.squeeze(1))
        return drawn.target_ids[:, 0, 0]

    def move_row(self, source: int, destination: int) -> None:
        """Copy what is kept for a row."""
        self._memory.move_row(source, destination)
