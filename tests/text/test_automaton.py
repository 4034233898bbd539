from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InputError
from outrider.text import TokenAutomaton
from tests.text.trees import allowed_ids, mask_of

VOCAB, STOPS = 40, (0, 39)
sequence = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@settings(deadline=None)
@given(sequences=st.sets(sequence, min_size=1, max_size=8), choices=st.lists(st.integers(0, 99), max_size=6))
def test_only_the_given_sequences_can_be_generated(sequences: set[tuple[int, ...]], choices: list[int]) -> None:
    constraint = TokenAutomaton.from_sequences(sorted(sequences), VOCAB, STOPS).constraint()
    path: tuple[int, ...] = ()
    for choice in choices:
        following = {s[len(path)] for s in sequences if s[: len(path)] == path and len(s) > len(path)}
        complete = path in sequences
        assert constraint.is_complete == complete
        allowed = allowed_ids(constraint)
        assert set(allowed) == following | (set(STOPS) if complete else set())
        for token_id in set(range(-1, VOCAB + 2)) - set(allowed):
            assert not constraint.advance(token_id)
        token_id = allowed[choice % len(allowed)]
        assert constraint.advance(token_id)
        if token_id in STOPS:
            assert constraint.is_complete
            assert allowed_ids(constraint) == []
            assert not constraint.advance(token_id)
            break
        path += (token_id,)


def test_going_back_and_forking() -> None:
    constraint = TokenAutomaton.from_sequences([(5, 6, 7), (5, 8)], VOCAB, STOPS).constraint()
    start = mask_of(constraint)
    constraint.advance(5)
    fork = constraint.fork()
    after_one = mask_of(constraint)
    assert all(constraint.advance(token_id) for token_id in (6, 7, 0))
    constraint.rollback(3)
    constraint.rollback(0)
    assert torch.equal(mask_of(constraint), after_one)
    constraint.rollback(1)
    assert torch.equal(mask_of(constraint), start)
    assert torch.equal(mask_of(fork), after_one)
    with pytest.raises(AssertionError, match="more tokens than were advanced"):
        constraint.rollback(1)


def test_an_automaton_that_allows_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="token automaton: allows no token at all, not even the end of the sequence"):
        TokenAutomaton({}, (), VOCAB, STOPS)
    with pytest.raises(InputError, match="allows no token at all"):
        TokenAutomaton.from_sequences([], VOCAB, STOPS)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        TokenAutomaton({0: {50: 1, 0: 1}}, (1,), VOCAB, (0, 77))
    message = str(caught.value)
    assert "3 problems" in message
    assert "stop id 77 is outside the vocabulary of 40 ids" in message
    assert "state 0 moves on token 50" in message
    assert "state 0 moves on token 0, which is a stop id" in message
    with pytest.raises(InputError, match="no stop id is given"):
        TokenAutomaton({0: {5: 1}}, (1,), VOCAB, ())
