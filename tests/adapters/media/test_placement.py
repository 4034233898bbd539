"""Each image gets its tokens where its placeholder stands, or the prompt is refused with both numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InputError
from outrider_adapters.media import Grid, place

IMAGE = 7


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=4),
    st.lists(st.lists(st.integers(8, 20), max_size=3), min_size=5, max_size=5),
)
def test_one_placeholder_and_all_of_them_are_the_same_prompt(
    sizes: list[tuple[int, int]], texts: list[list[int]]
) -> None:
    grids = [Grid(*size) for size in sizes]
    short, long = list(texts[0]), list(texts[0])
    starts: list[int] = []
    for grid, text in zip(grids, texts[1:], strict=False):
        starts.append(len(long))
        short += [IMAGE, *text]
        long += [IMAGE] * grid.num_tokens + text
    placement = place(short, IMAGE, grids)
    assert placement.token_ids == tuple(long)
    assert [(span.start, span.grid) for span in placement.spans] == list(zip(starts, grids, strict=True))
    assert place(long, IMAGE, grids) == placement


@pytest.mark.parametrize(
    ("ids", "grids", "said"),
    [
        ([1, IMAGE], [], ["1 image placeholder ", "0 images were"]),
        ([1, 2], [Grid(2, 2)], ["0 image placeholders", "1 image was", "or 4 where"]),
        ([IMAGE, IMAGE], [Grid(2, 2)] * 3, ["2 image placeholders", "3 images were", "or 12 where"]),
        ([IMAGE] * 5, [Grid(2, 2)], ["5 image placeholders", "1 image was", "or 4 where"]),
        ([IMAGE, IMAGE, 1, IMAGE], [Grid(1, 3)], ["3 placeholders", "image 1 of 1", "position 0", "end at 3"]),
        ([IMAGE, 1, IMAGE, IMAGE, IMAGE], [Grid(1, 2), Grid(1, 2)], ["image 1 of 2", "interrupted"]),
    ],
)
def test_other_numbers_are_refused(ids: list[int], grids: list[Grid], said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        place(ids, IMAGE, grids)
    assert all(part in str(caught.value) for part in [*said, f"token id {IMAGE}"]), str(caught.value)
