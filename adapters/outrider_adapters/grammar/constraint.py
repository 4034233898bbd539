"""`XGrammarConstraint`: a place in a text of a compiled grammar."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override
from xgrammar import GrammarMatcher

from outrider.interfaces.constraint import TokenConstraint

__all__ = ["XGrammarConstraint"]


class XGrammarConstraint(TokenConstraint):
    """The state of an xgrammar matcher, which can take back any number of tokens."""

    def __init__(self, matcher: GrammarMatcher, vocab_size: int, special_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._special_ids = special_ids

    @property
    @override
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    @override
    def is_complete(self) -> bool:
        return self._matcher.is_completed()

    @override
    def fill_mask(self, out: Tensor) -> None:
        if self._matcher.is_terminated():
            out.zero_()  # the matcher refuses to say so
        else:
            self._matcher.fill_next_token_bitmask(out.numpy())

    @override
    def advance(self, token_id: int) -> bool:
        # The matcher would refuse these as well, but with a warning on stderr each time.
        is_token = 0 <= token_id < self._vocab_size and token_id not in self._special_ids
        if not is_token or self._matcher.is_terminated():
            return False
        return self._matcher.accept_token(token_id)

    @override
    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    @override
    def fork(self) -> TokenConstraint:
        return XGrammarConstraint(self._matcher.fork(), self._vocab_size, self._special_ids)
