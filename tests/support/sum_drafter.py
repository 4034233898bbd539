"""A drafter on the device whose state grows pair by pair, so that a prompt of several parts needs all that was kept of each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from attrs import frozen

from outrider.drafting import ChainLayout, draft_lengths
from outrider.interfaces import Drafter, DrafterBuilder, DrafterParts
from outrider.types import DecodeState, HiddenTap, Proposal, TreeShape, VerifiedRows

__all__ = ["SumBuilder"]


def _sum(token_ids: Iterable[int]) -> int:
    """What stands for a sequence: its tokens (from 1), each times the cube of its place."""
    return sum((token + 1) * place**3 for place, token in enumerate(token_ids, start=1))


class SumDrafter(Drafter):
    """Keeps the sum of each row's sequence, and proposes the token that follows a sequence of that sum, where it knows one."""

    def __init__(self, follows: dict[int, int], num_rows: int, moves_spare_row: bool, device: torch.device) -> None:
        self._layout = ChainLayout(1, num_rows, device, scratch_slots=0)
        self._known = torch.tensor(sorted(follows), device=device)
        self._next = torch.tensor([follows[each] for each in sorted(follows)], device=device)
        self._sums = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._fixed = () if moves_spare_row else (num_rows - 1,)

    @property
    def shape(self) -> TreeShape:
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return ()

    @property
    def runs_on_host(self) -> bool:
        return False

    def extend(self, rows: VerifiedRows) -> None:
        added = (rows.next_tokens + 1) * (rows.indices + 2) ** 3
        if rows.host_prefix_lens is None:
            width = rows.query_lens[0]
            place = torch.arange(len(added), device=added.device).view(-1, width)
            real = place <= rows.last_rows[:, None]
            self._sums[: len(place)].add_((added.view(-1, width) * real).sum(dim=1))
            return
        first = 0
        for row, (count, start) in enumerate(zip(rows.query_lens, rows.host_prefix_lens, strict=True), rows.first_row):
            before = self._sums[row] if start else rows.tokens[first] + 1
            self._sums[row].copy_(before + added[first : first + count].sum())
            first += count

    def propose(self, state: DecodeState) -> Proposal:
        same = self._sums[: state.num_rows, None] == self._known
        tokens = self._next.index_select(0, same.int().argmax(dim=1))
        lens = draft_lengths(state, self.shape).minimum(same.any(dim=1))
        return self._layout.proposal(tokens[:, None], lens)

    def move_row(self, source: int, destination: int) -> None:
        if source not in self._fixed and destination not in self._fixed:
            self._sums[destination].copy_(self._sums[source])


@frozen
class SumBuilder(DrafterBuilder):
    """Knows ``texts``: prompts and what follows them. ``moves_spare_row``: whether it does what the loop asks of it."""

    texts: tuple[tuple[int, ...], ...]
    moves_spare_row: bool = True

    @property
    def slack(self) -> int:
        return 2

    @property
    def needs_tree(self) -> bool:
        return False

    @property
    def kv_layers(self) -> None: ...

    def build(self, parts: DrafterParts) -> Drafter:
        follows = {_sum(text[:end]): text[end] for text in self.texts for end in range(1, len(text))}
        assert len(follows) == sum(len(text) - 1 for text in self.texts), "no two sequences have one sum"
        device = parts.target.stack.spec.device
        return SumDrafter(follows, parts.num_rows, self.moves_spare_row, device)
