"""Each image gets its tokens where its placeholder stands, or the prompt is refused with both numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InputError
from outrider_adapters.media import Grid, MediaOfAKind, Medium, place, place_media

IMAGE = 7
VIDEO = 6


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


def kinds(images: list[Grid], videos: list[Grid]) -> list[MediaOfAKind]:
    return [
        MediaOfAKind(Medium.IMAGE, IMAGE, tuple(images)),
        MediaOfAKind(Medium.VIDEO, VIDEO, tuple(videos)),
    ]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 3)), max_size=5), st.booleans(), st.booleans()
)
def test_each_kind_takes_its_own_placeholders_in_order(
    media: list[tuple[bool, int, int]], repeat_images: bool, repeat_videos: bool
) -> None:
    """Whether one kind is repeated does not matter to the other; text stands between any two."""
    given_ids: list[int] = []
    long: list[int] = []
    grids: dict[bool, list[Grid]] = {True: [], False: []}
    for is_video, size, frames in media:
        grid = Grid(1, size, frames if is_video else 1)
        token, repeated = (VIDEO, repeat_videos) if is_video else (IMAGE, repeat_images)
        grids[is_video].append(grid)
        given_ids += [9, *[token] * (grid.num_tokens if repeated else 1)]
        long += [9, *[token] * grid.num_tokens]
    placement = place_media(given_ids, kinds(grids[False], grids[True]))
    assert placement.token_ids == tuple(long)
    for medium, token in ((Medium.IMAGE, IMAGE), (Medium.VIDEO, VIDEO)):
        spans = placement.spans_of(medium)
        assert [span.grid for span in spans] == grids[medium is Medium.VIDEO]
        covered = [place for span in spans for place in range(span.start, span.end)]
        assert covered == [place for place, token_id in enumerate(long) if token_id == token]
    assert sorted(placement.spans, key=lambda span: span.start) == list(placement.spans)


def test_faults_of_both_kinds_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        place_media([IMAGE, VIDEO, 9, VIDEO], kinds([], [Grid(2, 2, 2)]))
    said = [
        "2 problems",
        "1 image placeholder (token id 7) and 0 images were given",
        "2 video placeholders (token id 6) and 1 video was given; give one placeholder for each video, or 8 where they are "
        "repeated for every token of a video",
    ]
    assert all(part in str(caught.value) for part in said), str(caught.value)
    with pytest.raises(InputError, match=r"4 placeholders .token id 6. of video 1 of 1 are interrupted"):
        place_media([VIDEO, VIDEO, 9, VIDEO, VIDEO], kinds([], [Grid(2, 1, 2)]))
