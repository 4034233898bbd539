"""Positions on three axes against a token-by-token count."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_adapters.media import Grid, Medium, Placement, Span
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


VIDEOS = st.lists(
    st.one_of(
        st.integers(1, 4),
        st.tuples(
            st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 8.0])
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(VIDEOS, st.sampled_from([1, 2, 4]))
def test_a_video_also_spans_time_and_text_goes_on_after_its_sides(
    pieces: list[int | tuple[int, int, int, float]], pace: int
) -> None:
    """Steps of quarters of a second, so that the count here is exact."""
    expected: list[tuple[int, int, int]] = []
    spans: list[Span] = []
    following = 0
    for piece in pieces:
        if isinstance(piece, int):
            expected += [(now, now, now) for now in range(following, following + piece)]
            following += piece
            continue
        frames, height, width, seconds = piece
        spans.append(Span(len(expected), Grid(height, width, frames, seconds), Medium.VIDEO))
        expected += [
            (following + int(frame * seconds * pace), following + row, following + column)
            for frame in range(frames)
            for row in range(height)
            for column in range(width)
        ]
        following += max(height, width)
    found = multi_axis_positions(Placement((0,) * len(expected), tuple(spans)), pace)
    assert torch.equal(found.positions, torch.tensor(expected).t())
    assert len(expected) + found.offset == following
    assert found.offset <= 0
