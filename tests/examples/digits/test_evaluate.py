"""How results are counted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.digits.evaluate import CHAIN, accepted_counts, digits_right, emitted_by_passes
from examples.digits.questions import SEE, answer

rows = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(rows)
def test_a_right_answer_is_counted_as_right(row: list[int]) -> None:
    assert digits_right(answer(SEE, [row]), row) == (len(row), True)


@given(rows, rows)
def test_digits_count_in_their_places(row: list[int], said: list[int]) -> None:
    in_place = sum(index < len(said) and said[index] == digit for index, digit in enumerate(row))
    assert digits_right(answer(SEE, [said]), row) == (in_place, said == row)


def test_nonsense_counts_as_nothing() -> None:
    assert digits_right("There is only one digit, and it is seven.", [7]) == (0, False)
    assert digits_right("", [7]) == (0, False)


def reference_passes(ids: Sequence[int], own: Sequence[bool], chains: Sequence[Sequence[int]]) -> list[int]:
    """Round by round, as an engine does it: a root, a chain after it, what of it is accepted, and a bonus."""
    emitted: list[int] = []
    position = 0
    while position < len(ids):
        if not own[position]:
            position += 1
            continue
        end = position
        while end < len(ids) and own[end]:
            end += 1
        root = position  # the first token of an answer comes with its prompt
        while root < end - 1:
            accepted = 0
            for token in chains[root - 1]:
                at = root + accepted + 1
                if at >= end or ids[at] != token:
                    break
                accepted += 1
            new = min(accepted + 1, end - 1 - root)
            emitted.append(new)
            root += new
        position = end
    return emitted


@given(st.data())
def test_passes_are_those_of_an_engine(data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 24))
    ids = data.draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    own = [False, *data.draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))]
    chain = st.lists(st.integers(0, 2), min_size=CHAIN, max_size=CHAIN)
    chains = data.draw(st.lists(chain, min_size=length - 1, max_size=length - 1))
    counts = accepted_counts(torch.tensor([chains]), torch.tensor([ids]), torch.tensor([own]))[0]
    assert emitted_by_passes(own, [int(count) for count in counts]) == reference_passes(ids, own, chains)
