"""Positions on three axes against a token-by-token count."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_adapters.media import Grid, Placement, Span
from outrider_adapters.qwen_vl import multi_axis_positions

PIECES = st.lists(st.one_of(st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 4))), min_size=1, max_size=6)


@given(PIECES)
def test_text_counts_on_and_an_image_spans_its_sides(pieces: list[int | tuple[int, int]]) -> None:
    expected: list[tuple[int, int, int]] = []
    spans: list[Span] = []
    following = 0
    for piece in pieces:
        if isinstance(piece, int):
            expected += [(now, now, now) for now in range(following, following + piece)]
        else:
            spans.append(Span(len(expected), Grid(*piece)))
            expected += [
                (following, following + row, following + column)
                for row in range(piece[0])
                for column in range(piece[1])
            ]
        following = max(max(axes) for axes in expected) + 1
    found = multi_axis_positions(Placement((0,) * len(expected), tuple(spans)))
    assert torch.equal(found.positions, torch.tensor(expected).t())
    # The next token of the answer follows the largest position of the prompt.
    assert len(expected) + found.offset == following
    assert found.offset <= 0
