"""What a round emits and where it is cut: against going through the tokens one by one."""

from __future__ import annotations

import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from outrider.loop.advance import RowReport, RowStatus, advance, unpack
from outrider.types import Acceptance, SamplingParams
from tests.sampling.toys import decode_state

WIDTH = 4
STOPS = (7, 8)
NEW = (1, 2, 7, 8, 0)
"""Tokens that may be chosen; two of them end a sequence."""


@st.composite
def one_row(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, bool, bool]:
    """A sequence, the tokens after it, how many drafted ones are accepted, how many may come, finite, finished."""
    return (
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)),
        draw(st.lists(st.sampled_from(NEW), min_size=WIDTH, max_size=WIDTH)),
        draw(st.integers(0, WIDTH - 1)),
        draw(st.integers(1, WIDTH + 2)),
        draw(st.integers(0, 4)) > 0,
        draw(st.integers(0, 4)) == 0,
    )


def expected(tokens: list[int], count: int, room: int, finite: bool, finished: bool) -> RowReport:
    """The report of one row, in plain Python."""
    if finished or not finite:
        return RowReport((), 0, RowStatus.IDLE if finished else RowStatus.NON_FINITE)
    emitted: list[int] = []
    for token in tokens[: count + 1]:
        emitted.append(token)
        if token in STOPS:
            return RowReport(tuple(emitted), count + 1, RowStatus.STOP_ID)
        if len(emitted) == room:
            return RowReport(tuple(emitted), count + 1, RowStatus.FULL)
    return RowReport(tuple(emitted), count + 1, RowStatus.RUNNING)


@given(st.lists(one_row(), min_size=1, max_size=4))
def test_rows_are_cut_at_the_first_stop_id_or_limit(
    rows: list[tuple[list[int], list[int], int, int, bool, bool]],
) -> None:
    sequences = [row[0] for row in rows]
    wanted = [expected(*row[1:]) for row in rows]
    stops = [STOPS if number % 2 == 0 else (*STOPS, 9) for number in range(len(rows))]
    state = evolve(
        decode_state(sequences, [SamplingParams()] * len(rows), 10, stop_ids=stops),
        max_totals=torch.tensor([len(row[0]) + row[3] for row in rows]),
        finished=torch.tensor([row[5] for row in rows]),
    )
    packed = advance(
        state,
        Acceptance(
            path=torch.zeros(len(rows), WIDTH, dtype=torch.int64),
            counts=torch.tensor([row[2] for row in rows]),
            tokens=torch.tensor([row[1] for row in rows]),
            finite=torch.tensor([row[4] for row in rows]),
        ),
    )
    assert unpack(packed) == wanted
    for number, (sequence, report) in enumerate(zip(sequences, wanted, strict=True)):
        after = [*sequence, *report.token_ids]
        assert int(state.lengths[number]) == len(after) - 1
        assert [int(token) for token in state.tokens[number, : len(after)]] == after
        assert int(state.roots[number]) == after[-1]
        assert bool(state.finished[number]) is (report.status is not RowStatus.RUNNING)
