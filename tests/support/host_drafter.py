"""A drafter that keeps Python state for every row, and checks that it was told all there is to know."""

from __future__ import annotations

from collections import Counter

import torch
from attrs import field, frozen

from outrider.drafting import ChainLayout, draft_lengths, histories
from outrider.interfaces import Drafter, DrafterBuilder, DrafterParts
from outrider.types import DecodeState, HiddenTap, Proposal, TreeShape, VerifiedRows
from tests.support.drafters import WrappedBuilder, WrappedDrafter

__all__ = ["DeclaredBuilder", "HostBuilder", "HostDrafter"]


class HostDrafter(Drafter):
    """Proposes what followed a row's newest token when it last occurred, from a text of its own for each row.

    The text is made of what `extend` was told, and must be the sequence whenever something is proposed. ``calls`` counts.
    """

    def __init__(self, length: int, num_rows: int, device: torch.device, calls: Counter[str]) -> None:
        self._layout = ChainLayout(length, num_rows, device, scratch_slots=0)
        self._device = device
        self._texts: list[list[int]] = [[] for _ in range(num_rows)]
        self._calls = calls

    @property
    def shape(self) -> TreeShape:
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return ()

    @property
    def runs_on_host(self) -> bool:
        return True

    def extend(self, rows: VerifiedRows) -> None:
        self._calls["extend" if rows.prefill_lengths is None else "prompt"] += 1
        first = 0
        for place, count in enumerate(rows.query_lens):
            text = self._texts[rows.first_row + place]
            for pair in range(first, int(rows.last_rows[place]) + 1):
                index, token, following = (int(of[pair]) for of in (rows.indices, rows.tokens, rows.next_tokens))
                if index == 0:
                    text[:] = [token]
                assert text[index] == token, "the pair stands where the text has its token"
                text[index + 1 :] = [following]
            first += count

    def propose(self, state: DecodeState) -> Proposal:
        self._calls["propose"] += 1
        assert not bool(state.finished.any()), "what has ended was read, and its row given to another"
        texts = self._texts[: state.num_rows]
        assert texts == histories(state), "it was told every token of every row"
        length = self.shape.num_tokens
        drafts: list[list[int]] = []
        for text in texts:
            places = [place for place in range(len(text) - 1) if text[place] == text[-1]]
            drafts.append(text[places[-1] + 1 :][:length] if places else [])
        tokens = torch.tensor([draft + [0] * (length - len(draft)) for draft in drafts], device=self._device)
        found = torch.tensor([len(draft) for draft in drafts], device=self._device)
        return self._layout.proposal(tokens.view(-1, length), draft_lengths(state, self.shape).minimum(found))

    def move_row(self, source: int, destination: int) -> None:
        self._calls["move"] += 1
        self._texts[destination] = list(self._texts[source])


@frozen(eq=False)
class HostBuilder(DrafterBuilder):
    """Builds them; ``calls`` are those of the newest."""

    length: int = 3
    calls: Counter[str] = field(factory=Counter[str])

    @property
    def slack(self) -> int:
        return self.length + 1

    @property
    def needs_tree(self) -> bool:
        return False

    @property
    def kv_layers(self) -> None: ...

    def build(self, parts: DrafterParts) -> Drafter:
        self.calls.clear()
        return HostDrafter(self.length, parts.num_rows, parts.target.stack.spec.device, self.calls)


@frozen(eq=False)
class DeclaredBuilder(WrappedBuilder):
    """The drafter of ``inner`` with another declaration, true or not."""

    runs_on_host: bool

    def build(self, parts: DrafterParts) -> Drafter:
        return _Declared(self.inner.build(parts), self.runs_on_host)


class _Declared(WrappedDrafter):
    def __init__(self, inner: Drafter, runs_on_host: bool) -> None:
        super().__init__(inner)
        self._runs_on_host = runs_on_host

    @property
    def runs_on_host(self) -> bool:
        return self._runs_on_host
