from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from outrider.errors import InputError
from outrider.interfaces.constraint import TokenConstraint
from outrider.text import TokenAutomaton, advance_path, walk_tree
from tests.text.trees import by_forking, mask_of

VOCAB, STOP = 40, 0
SEQUENCES = [(5, 6, 7), (5, 6, 8), (5, 33), (9,), ()]


def automaton() -> TokenAutomaton:
    return TokenAutomaton.from_sequences(SEQUENCES, VOCAB, (STOP, 39))


@st.composite
def automata(draw: st.DrawFn) -> TokenAutomaton:
    """Random ones, loops and dead ends included."""
    states = range(4)
    edges = st.dictionaries(st.integers(1, 5), st.sampled_from(states), max_size=4)
    transitions = {state: draw(edges) for state in states}
    accepting = draw(st.sets(st.sampled_from(states)))
    if not transitions[0]:
        accepting.add(0)
    return TokenAutomaton(transitions, accepting, VOCAB, (STOP,))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens (repeated siblings, stop ids and ids outside the vocabulary among them) and parents."""
    tokens = draw(st.lists(st.integers(0, 5) | st.sampled_from([39, 40, 10**6, -1]), max_size=14))
    parents = [draw(st.integers(0, node)) for node in range(len(tokens))]
    return tokens, parents


@settings(deadline=None)
@given(automaton=automata(), tree=trees())
def test_a_walk_is_what_forking_at_every_node_gives(
    automaton: TokenAutomaton, tree: tuple[list[int], list[int]]
) -> None:
    tokens, parents = tree
    constraint = automaton.constraint()
    expected = by_forking(constraint, tokens, parents)
    before = mask_of(constraint)
    assert torch.equal(walk_tree(constraint, tokens, parents), expected)
    assert torch.equal(mask_of(constraint), before)
    out = torch.zeros_like(expected)
    assert walk_tree(constraint, tokens, parents, out) is out
    assert torch.equal(out, expected)


class _NeverGoesBack(TokenConstraint):
    def __init__(self, inner: TokenConstraint) -> None:
        self._inner = inner

    @property
    @override
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    @override
    def is_complete(self) -> bool:
        return self._inner.is_complete

    @override
    def fill_mask(self, out: Tensor) -> None:
        self._inner.fill_mask(out)

    @override
    def advance(self, token_id: int) -> bool:
        return self._inner.advance(token_id)

    @override
    def rollback(self, num_tokens: int) -> None:
        pass

    @override
    def fork(self) -> TokenConstraint:
        return self._inner.fork()


def test_the_check_fails_for_a_constraint_that_does_not_go_back() -> None:
    tokens, parents = [5, 6, 7, 9], [0, 1, 2, 0]
    broken = _NeverGoesBack(automaton().constraint())
    assert not torch.equal(walk_tree(broken, tokens, parents), by_forking(broken, tokens, parents))


def test_a_chain_and_an_empty_tree() -> None:
    constraint = automaton().constraint()
    assert torch.equal(walk_tree(constraint, [], []), mask_of(constraint)[None])
    masks = walk_tree(constraint, [5, 6, 3], [0, 1, 2])
    assert torch.equal(masks[0], mask_of(constraint))
    constraint.advance(5)
    assert torch.equal(masks[1], mask_of(constraint))
    assert masks[3].eq(-1).all()  # below a token that is not allowed everything is


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([5], [], r"1 tokens and 0 parents"),
        ([5, 6], [0, 2], r"node 2 has parent 2; a parent is a node before it, 0 to 1"),
        ([5], [-1], r"node 1 has parent -1"),
    ],
)
def test_a_tree_that_is_none_is_refused(tokens: Sequence[int], parents: Sequence[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        walk_tree(automaton().constraint(), tokens, parents)


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"out is \[2, 1\] torch.int32 on cpu, expected \[2, 2\] torch.int32 on cpu"):
        walk_tree(automaton().constraint(), [5], [0], torch.empty(2, 1, dtype=torch.int32))


def test_advancing_over_emitted_tokens() -> None:
    constraint = automaton().constraint()
    advance_path(constraint, [5, 6])
    with pytest.raises(InputError, match=r"token 9 \(number 1 of 2 emitted\) is not allowed; 2 of the 40 tokens"):
        advance_path(constraint, [7, 9])
    advance_path(constraint, [STOP])
    with pytest.raises(InputError, match="no token of the vocabulary is allowed there"):
        advance_path(constraint, [5])
