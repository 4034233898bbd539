"""`TokenAutomaton`: a constraint given as a finite automaton over token ids, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from outrider.errors import InputError, Problems
from outrider.interfaces.constraint import TokenConstraint
from outrider.text.constraints import check_start
from outrider.text.masks import pack_mask

__all__ = ["TokenAutomaton"]


class TokenAutomaton:
    """A deterministic automaton whose paths are the token sequences that a request may generate.

    ``transitions[state][token_id]`` is the next state; in an ``accepting`` state the sequence may end with any of
    ``stop_ids``. Useful for a choice among given answers (`from_sequences`), and as the reference that other
    constraints are compared with.
    """

    def __init__(
        self,
        transitions: Mapping[int, Mapping[int, int]],
        accepting: Iterable[int],
        vocab_size: int,
        stop_ids: Iterable[int],
        start: int = 0,
    ) -> None:
        """Check and take the automaton.

        Raises:
            InputError: an id outside the vocabulary, a stop id used as a transition, no stop id, or a start state in
                which nothing is allowed; all faults at once.
        """
        self.transitions: dict[int, dict[int, int]] = {state: dict(edges) for state, edges in transitions.items()}
        self.accepting: frozenset[int] = frozenset(accepting)
        self.vocab_size = vocab_size
        self.stop_ids: tuple[int, ...] = tuple(stop_ids)
        self.start = start
        with Problems("token automaton", InputError) as problems:
            if not self.stop_ids:
                problems.add("no stop id is given, so no sequence could end; give the end-of-sequence ids")
            for token_id in self.stop_ids:
                if not 0 <= token_id < vocab_size:
                    problems.add(f"stop id {token_id} is outside the vocabulary of {vocab_size} ids")
            for state, edges in self.transitions.items():
                for token_id in edges:
                    if not 0 <= token_id < vocab_size:
                        problems.add(
                            f"state {state} moves on token {token_id}, outside the vocabulary of {vocab_size} ids"
                        )
                    if token_id in self.stop_ids:
                        problems.add(f"state {state} moves on token {token_id}, which is a stop id and ends a sequence")
        check_start(self.constraint(), "token automaton")

    @classmethod
    def from_sequences(
        cls, sequences: Iterable[Sequence[int]], vocab_size: int, stop_ids: Iterable[int]
    ) -> TokenAutomaton:
        """The automaton of exactly ``sequences``, each followed by a stop id."""
        transitions: dict[int, dict[int, int]] = {0: {}}
        accepting: set[int] = set()
        for sequence in sequences:
            state = 0
            for token_id in sequence:
                state = transitions[state].setdefault(token_id, len(transitions))
                transitions.setdefault(state, {})
            accepting.add(state)
        return cls(transitions, accepting, vocab_size, stop_ids)

    def constraint(self) -> TokenConstraint:
        """A constraint at the start state."""
        return _AutomatonConstraint(self, [self.start])

    def allowed(self, state: int) -> frozenset[int]:
        """Ids that may follow in ``state``."""
        ends = self.stop_ids if state in self.accepting else ()
        return frozenset(self.transitions.get(state, {})) | frozenset(ends)

    def mask(self, state: int) -> Tensor:
        """``[ceil(V / 32)]`` int32 bit mask of `allowed`; shared, not to be changed."""
        if state not in self._masks:
            allowed = torch.zeros(self.vocab_size, dtype=torch.bool)
            allowed[sorted(self.allowed(state))] = True
            self._masks[state] = pack_mask(allowed)
        return self._masks[state]

    @cached_property
    def _masks(self) -> dict[int, Tensor]:
        return {}


class _AutomatonConstraint(TokenConstraint):
    """A place in an automaton: the states passed, ``None`` after a stop id."""

    def __init__(self, automaton: TokenAutomaton, states: list[int | None]) -> None:
        self._automaton = automaton
        self._states = states

    @property
    @override
    def vocab_size(self) -> int:
        return self._automaton.vocab_size

    @property
    @override
    def is_complete(self) -> bool:
        state = self._states[-1]
        return state is None or state in self._automaton.accepting

    @override
    def fill_mask(self, out: Tensor) -> None:
        state = self._states[-1]
        if state is None:
            out.zero_()
        else:
            out.copy_(self._automaton.mask(state))

    @override
    def advance(self, token_id: int) -> bool:
        state = self._states[-1]
        if state is None or token_id not in self._automaton.allowed(state):
            return False
        self._states.append(self._automaton.transitions.get(state, {}).get(token_id))
        return True

    @override
    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens < len(self._states), "cannot take back more tokens than were advanced"
        if num_tokens:
            del self._states[-num_tokens:]

    @override
    def fork(self) -> TokenConstraint:
        return _AutomatonConstraint(self._automaton, list(self._states))
