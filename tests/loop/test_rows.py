"""The rows of running requests: each value against a plain account of it, and how few operators a change costs."""

from __future__ import annotations

import pytest
import torch
from attrs import define, evolve, field, fields
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider._torch import int_rows
from outrider.interfaces import NULL_PAGE
from outrider.kv import PagePool
from outrider.loop.rows import RowSetup, RowStore
from outrider.loop.sampling_rows import features_of
from outrider.types import SamplingFeatures, SamplingParams
from outrider.types.state import DecodeState
from tests.support.operators import Operators
from tests.support.toy_target import CPU

ROWS, CONTEXT, SLACK, STOPS, VOCAB = 5, 12, 3, 3, 20


@define
class PlainRow:
    """What a row should hold, in plain Python; ``tokens`` only as far as anybody wrote them."""

    setup: RowSetup | None = None
    sampling: SamplingParams = field(factory=SamplingParams)
    length: int = 0
    offset: int = 0
    temperature: float = 0.0
    finished: bool = True
    pages: tuple[int, ...] = ()
    features: SamplingFeatures = field(factory=SamplingFeatures)


def store(pages: PagePool | None = None) -> RowStore:
    return RowStore(ROWS, CONTEXT, SLACK, STOPS, VOCAB, PagePool(ROWS, 4, 22, 4, CPU) if pages is None else pages, CPU)


FLOAT = st.floats(0.125, 4.0, width=32)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), FLOAT),
    top_k=st.integers(0, 9),
    top_p=st.floats(0.5, 1.0, width=32),
    min_p=st.floats(0.0, 0.5, width=32),
    repetition_penalty=FLOAT,
    presence_penalty=FLOAT,
    frequency_penalty=FLOAT,
    min_new_tokens=st.sampled_from([0, 4, 10**30]),
    seed=st.integers(0, 2**63 - 1),
    banned_token_ids=st.sampled_from([(), (), (3, 7)]),
)
SETUPS = st.builds(
    RowSetup,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT - 1).map(tuple),
    max_total=st.integers(2, CONTEXT),
    stop_ids=st.lists(st.integers(0, VOCAB - 1), max_size=STOPS).map(tuple),
    draft_cap=st.integers(0, 4),
    position_offset=st.integers(-2, 5),
    sampling=PARAMS,
)
ROW = st.integers(0, ROWS - 1)
CHANGES = st.one_of(
    st.tuples(st.just("set"), ROW, st.lists(SETUPS, min_size=1, max_size=3)),
    st.tuples(st.just("move"), ROW, ROW),
    st.tuples(st.just("clear"), ROW, st.none()),
)


def check(plain: PlainRow, state: DecodeState, row: int) -> None:
    """Row ``row`` of ``state`` holds what ``plain`` says."""
    sampling = state.sampling
    assert int(state.lengths[row]) == plain.length
    assert int(state.position_offsets[row]) == plain.offset
    assert bool(state.finished[row]) is plain.finished
    assert float(sampling.temperature[row]) == plain.temperature
    assert float(sampling.top_p[row]) == plain.sampling.top_p
    assert float(sampling.min_p[row]) == plain.sampling.min_p
    assert float(sampling.repetition_penalty[row]) == plain.sampling.repetition_penalty
    assert float(sampling.presence_penalty[row]) == plain.sampling.presence_penalty
    assert float(sampling.frequency_penalty[row]) == plain.sampling.frequency_penalty
    assert int(sampling.top_k[row]) == plain.sampling.top_k
    assert int(sampling.seeds[row]) == plain.sampling.seed
    setup = plain.setup
    prompt = () if setup is None else setup.prompt
    least = 0 if setup is None else min(len(prompt) + plain.sampling.min_new_tokens, 2**63 - 1)
    assert int(sampling.min_totals[row]) == least
    if sampling.bias is not None:
        barred = torch.tensor([token in plain.sampling.banned_token_ids for token in range(VOCAB)])
        assert torch.equal(sampling.bias[row] == -torch.inf, barred)
    stops = () if setup is None else setup.stop_ids
    assert int_rows(state.stop_ids)[row] == [*stops, *[-1] * (STOPS - len(stops))]
    assert int_rows(state.tokens)[row][: len(prompt)] == list(prompt)
    assert int(state.roots[row]) == (prompt[-1] if prompt else 0)
    assert int(state.prompt_lens[row]) == len(prompt)
    assert int(state.max_totals[row]) == (0 if setup is None else setup.max_total)
    assert int(state.draft_caps[row]) == (0 if setup is None else setup.draft_cap)
    assert int_rows(state.page_table)[row] == [*plain.pages, *[NULL_PAGE] * (4 - len(plain.pages))]


def tensors_of(state: DecodeState) -> dict[str, Tensor]:
    """Every tensor of a view that stays where it is."""
    sampling = state.sampling
    return {
        "lengths": state.lengths,
        "roots": state.roots,
        "tokens": state.tokens,
        "prompt_lens": state.prompt_lens,
        "max_totals": state.max_totals,
        "stop_ids": state.stop_ids,
        "finished": state.finished,
        "draft_caps": state.draft_caps,
        "position_offsets": state.position_offsets,
        "page_table": state.page_table,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seeds": sampling.seeds,
        "min_totals": sampling.min_totals,
    }


def test_every_tensor_of_the_state_is_looked_at() -> None:
    state = store().view(0, ROWS, CONTEXT)
    named = {
        each.name for value in (state, state.sampling) for each in fields(type(value)) if "Tensor" in str(each.type)
    }
    assert named == {*tensors_of(state), "bias"}


@given(st.lists(CHANGES, min_size=1, max_size=8))
def test_rows_hold_what_was_set_moved_and_cleared(
    changes: list[tuple[str, int, list[RowSetup] | int | None]],
) -> None:
    """Every value of every row, read through views that were taken before anything was written, as a graph reads them.

    All rows hold pages; rounds see those of rows that were set, and moved with them.
    """
    pages = PagePool(ROWS, 4, 22, 4, CPU)
    for row in range(ROWS):
        assert pages.reserve(row, 4 * (1 + row % 4))
    rows = store(pages)
    plain = [PlainRow() for _ in range(ROWS)]
    early = rows.view(0, ROWS, CONTEXT)
    for _, row, what in changes:
        match what:
            case list():
                setups = what[: ROWS - row]
                rows.set_rows(row, setups)
                for number, setup in enumerate(setups, row):
                    params = setup.sampling
                    plain[number] = PlainRow(
                        setup,
                        params,
                        len(setup.prompt) - 1,
                        setup.position_offset,
                        params.temperature,
                        finished=False,
                        pages=pages.pages_of(number),
                        features=features_of(params),
                    )
            case int():
                rows.move_row(row, what)
                plain[what] = evolve(plain[row])
            case None:
                rows.clear_row(row)
                cleared = evolve(plain[row], length=0, offset=0, temperature=0.0, finished=True, pages=())
                plain[row] = evolve(cleared, features=SamplingFeatures())
    late = rows.view(0, ROWS, CONTEXT)
    for name, tensor in tensors_of(early).items():
        assert tensors_of(late)[name].data_ptr() == tensor.data_ptr(), name
    for number, each in enumerate(plain):
        check(each, evolve(early, sampling=evolve(early.sampling, bias=late.sampling.bias)), number)
        assert rows.view(number, 1, CONTEXT).sampling.features == each.features
        check(each, rows.view(number, 1, CONTEXT), 0)
    union = SamplingFeatures()
    for each in plain:
        union = union | each.features
    assert rows.sampling.features(0, ROWS) == late.sampling.features == union


def test_columns_are_contiguous() -> None:
    """Plans copy several of them in one kernel, which works on contiguous tensors alone."""
    rows = store()
    for state in (rows.view(0, ROWS, CONTEXT), rows.view(1, 2, CONTEXT)):
        for name, tensor in tensors_of(state).items():
            assert name == "stop_ids" or tensor.is_contiguous(), name


def test_a_view_is_made_anew_only_when_its_features_change() -> None:
    rows = store()
    greedy = RowSetup((1, 2), 9, (), 2)
    before = rows.view(0, 2, 8).sampling
    rows.set_rows(0, [greedy, greedy])
    rows.move_row(0, 3)
    assert rows.view(0, 2, 8).sampling is before
    rows.set_rows(1, [evolve(greedy, sampling=SamplingParams(temperature=0.5))])
    assert rows.view(0, 2, 8).sampling is not before
    rows.clear_row(1)
    assert not rows.view(0, 2, 8).sampling.features.sampled


@pytest.mark.parametrize("count", [1, 4])
def test_a_change_costs_few_operators(count: int) -> None:
    """However many rows are set at once; on a GPU three uploads more. There was a time when each row took twenty."""
    rows = store()
    setups = [RowSetup(tuple(range(1, 5 + row)), 12, (2,), 3) for row in range(count)]
    with Operators() as setting:
        rows.set_rows(0, setups)
    with Operators() as moving:
        rows.move_row(0, 4)
    with Operators() as clearing:
        rows.clear_row(0)
    assert (setting.number, moving.number, clearing.number) == (5, 5, 4)
