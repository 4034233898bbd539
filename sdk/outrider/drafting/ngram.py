"""`NgramDrafter`: proposes what followed the newest tokens when they last occurred in the same sequence.

Source: Saxena 2023, "Prompt Lookup Decoding".

Shape suffixes: B requests, C columns of the history that are searched, K drafted tokens.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider.drafting.chain_proposal import ChainLayout
from outrider.drafting.limits import draft_lengths
from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import Drafter, DrafterParts, ModelFreeDrafter
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["NgramBuilder", "NgramDrafter", "drafter"]

_NO_TOKEN = -1


class NgramDrafter:
    """Chains of ``length`` tokens copied from the row's own sequence, prompt included; no model, no memory.

    The newest ``max_n`` tokens, else ever fewer down to ``min_n``, are looked for earlier in the sequence. Of several
    occurrences of the longest n-gram found the most recent counts, and the tokens that followed it are proposed. Where the
    sequence ends before ``length`` of them, it is taken to go on as it began to: after ``a b a b`` comes ``a b a b …``. A
    row without any occurrence drafts nothing.

    A round costs ``max_n`` comparisons of ``[B, C]`` ids, C being the longest sequence that runs (`DecodeState.max_length`).
    """

    def __init__(self, length: int, num_rows: int, device: torch.device, max_n: int = 3, min_n: int = 1) -> None:
        self._layout = ChainLayout(length, num_rows, device, scratch_slots=0)
        self._max_n = max_n
        self._min_n = min_n
        self._steps_K = torch.arange(length, device=device)

    @property
    def shape(self) -> TreeShape:
        """A chain of the given length; drafting writes no KV."""
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """None: it looks at tokens only."""
        return ()

    @property
    def runs_on_host(self) -> bool:
        """No: the history is searched where it lies, on the device."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Nothing to learn: the history of every row is in `DecodeState.tokens`."""

    def propose(self, state: DecodeState) -> Proposal:
        """K tokens per row that were found, none where nothing was. Device only, static shapes per (B, C)."""
        history_BC = state.tokens[:, : state.max_length]
        ends_B, found_B = self._newest_occurrence(history_BC, state.lengths)
        # What followed, from `end` + 1 to the root, over and over.
        period_B = (state.lengths - ends_B).clamp_(min=1)
        places_BK = ends_B[:, None] + 1 + self._steps_K.remainder(period_B[:, None])
        # Rows that draft nothing are padding; the clamp keeps theirs to tokens of the sequence.
        tokens_BK = history_BC.gather(1, places_BK.minimum(state.lengths[:, None]))
        return self._layout.proposal(tokens_BK, draft_lengths(state, self.shape) * found_B)

    def move_row(self, source: int, destination: int) -> None:
        """Nothing is kept per row."""

    def _newest_occurrence(self, history_BC: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Index ``[B]`` of the last token of the occurrence that counts (0 where there is none), and whether there is one."""
        rows, columns = history_BC.shape
        column_C = torch.arange(columns, device=history_BC.device)
        before = history_BC.new_full((rows, self._max_n - 1), _NO_TOKEN)
        padded = torch.cat([before, history_BC], dim=1)
        agrees_BC = column_C < lengths_B[:, None]
        size_BC = torch.zeros_like(history_BC)
        for back in range(self._max_n):
            # Column c holds token c - back, which must equal the token `back` before the root.
            shifted_BC = padded[:, self._max_n - 1 - back :][:, :columns]
            wanted_B1 = history_BC.gather(1, (lengths_B[:, None] - back).clamp_(min=0))
            agrees_BC = agrees_BC & (shifted_BC == wanted_B1)
            size_BC += agrees_BC
        # The longest n-gram first, then the most recent.
        best_B = torch.where(size_BC >= self._min_n, size_BC * columns + column_C, -1).amax(dim=1)
        return best_B.clamp(min=0).remainder(columns), best_B >= 0


@frozen
class NgramBuilder:
    """Chains of ``length`` tokens looked up in the text itself, by n-grams of ``max_n`` down to ``min_n`` tokens."""

    length: int
    max_n: int = 3
    min_n: int = 1

    @property
    def slack(self) -> int:
        """Root and drafted tokens."""
        return self.length + 1

    @property
    def needs_tree(self) -> bool:
        """A chain is causal."""
        return False

    @property
    def kv_layers(self) -> None:
        """No model."""

    def build(self, parts: DrafterParts) -> Drafter:
        """An n-gram drafter.

        Raises:
            ConfigurationError: sizes that cannot work; all at once.
        """
        with Problems("n-grams cannot be drafted", ConfigurationError) as problems:
            if self.length < 1:
                problems.add(f"num_draft_tokens is {self.length}, at least 1 is needed")
            if not 1 <= self.min_n <= self.max_n:
                problems.add(
                    f"n-grams of {self.max_n} down to {self.min_n} tokens are asked; 1 <= min_n <= max_n is needed"
                )
        return NgramDrafter(self.length, parts.num_rows, parts.target.stack.spec.device, self.max_n, self.min_n)


def drafter() -> ModelFreeDrafter:
    """What makes n-gram drafters (entry point ``outrider.drafters``)."""
    return NgramBuilder
