"""Verified pairs as rows of tokens: against counting them out one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.alignment import token_rows
from outrider.drafting.builders import ChainBuilder
from outrider.errors import BindError
from outrider.interfaces import BoundDraft
from outrider.kv import slots_of_rows
from outrider.types import DraftSpec, HiddenTap, RowAlignment, VerifiedRows
from tests.backends.device_only import device_only
from tests.support.engines import engine_of
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import toy_target

PAGE = 3


def token_at(row: int, index: int) -> int:
    """The token of sequence ``row`` at ``index``: any two differ."""
    return 1000 * row + index


def pairs(spans: Sequence[tuple[int, int]], totals: Sequence[int] | None) -> VerifiedRows:
    """Pairs start..end - 1 of each request; ``totals`` are the prompt lengths where these are prompts."""
    places = [(row, index) for row, (start, end) in enumerate(spans) for index in range(start, end)]
    indices = torch.tensor([index for _, index in places])
    rows = torch.tensor([row for row, _ in places])
    table = torch.arange(2, 2 + 20 * len(spans)).view(len(spans), 20)
    sizes = [end - start for start, end in spans]
    return VerifiedRows(
        first_row=4,
        tokens=torch.tensor([token_at(row, index) for row, index in places]),
        next_tokens=torch.tensor([token_at(row, index + 1) for row, index in places]),
        features=torch.zeros(len(places), 2),
        indices=indices,
        positions=indices + 50,
        slots=slots_of_rows(table, rows, indices, PAGE),
        last_rows=torch.tensor(sizes).cumsum(0) - 1,
        query_lens=tuple(sizes),
        prefix_lens=torch.tensor([start for start, _ in spans]),
        page_table=table,
        max_length=max(end for _, end in spans),
        host_prefix_lens=None if totals is None else tuple(start for start, _ in spans),
        prefill_lengths=None if totals is None else torch.tensor([totals[row] for row, _ in places]),
    )


def check(rows: VerifiedRows, wanted: Sequence[Sequence[int]]) -> None:
    """``rows`` are the tokens at the ``wanted`` indices of each request, where and after what they should be."""
    places = [(row, index) for row, indices in enumerate(wanted) for index in indices]
    indices = torch.tensor([index for _, index in places])
    assert [int(token) for token in rows.next_tokens] == [token_at(row, index) for row, index in places]
    assert rows.indices.equal(indices)
    assert rows.positions.equal(indices), "its own sequence, whatever the target's rope positions are"
    assert rows.slots.equal(slots_of_rows(rows.page_table, torch.tensor([row for row, _ in places]), indices, PAGE))
    assert rows.query_lens == tuple(map(len, wanted))
    assert [int(length) for length in rows.prefix_lens] == [indices[0] for indices in wanted]
    assert [int(place) for place in rows.last_rows] == [int(n) - 1 for n in torch.tensor(rows.query_lens).cumsum(0)]
    assert rows.max_length == max(indices[-1] + 1 for indices in wanted)
    assert rows.features is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=4))
def test_a_prompt_begins_with_its_first_token_and_ends_with_the_targets_choice(
    parts: list[tuple[int, int, int]],
) -> None:
    spans = [(start, start + size) for start, size, _ in parts]
    totals = [start + size + rest for start, size, rest in parts]
    rows = token_rows(pairs(spans, totals), PAGE)
    wanted = [range(start + 1 if start else 0, end + 1) for start, end in spans]
    check(rows, wanted)
    assert rows.host_prefix_lens == tuple(indices[0] for indices in wanted)
    # As transformers encodes: prompt tokens with the whole prompt, what follows with itself as the last.
    assert rows.prefill_lengths is not None
    expected = [max(total, index + 1) for indices, total in zip(wanted, totals, strict=True) for index in indices]
    assert [int(length) for length in rows.prefill_lengths] == expected


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 5))
def test_in_a_round_every_pair_is_its_second_token_and_the_host_is_not_asked(starts: list[int], width: int) -> None:
    rows = pairs([(start, start + width) for start in starts], None)
    with device_only():
        moved = token_rows(rows, PAGE)
    check(moved, [range(start + 1, start + width + 1) for start in starts])
    assert moved.host_prefix_lens is None
    assert moved.prefill_lengths is None


class Contradiction(ToyDraft):
    """A draft that says of itself that it reads tokens alone, and that it is fed features."""

    @property
    def spec(self) -> DraftSpec:
        return evolve(super().spec, alignment=RowAlignment.SAME)


def test_tokens_alone_go_with_no_features() -> None:
    target = toy_target()
    draft: BoundDraft = Contradiction(target, taps=(HiddenTap.at(1),))
    with pytest.raises(BindError, match=r"token i alone.*fed boundary 1.*declare RowAlignment.SHIFTED"):
        engine_of(target, ChainBuilder(draft, 2))
