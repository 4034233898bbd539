"""`TokenConstraint` and `ConstraintFactory`: which tokens one request may generate, given those before."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from attrs import frozen
from torch import Tensor

__all__ = ["ConstraintFactory", "ConstraintLoader", "GrammarSpec", "TokenConstraint"]


@frozen
class GrammarSpec:
    """What a request's text must look like: a JSON schema, a regular expression, or an EBNF grammar with a ``root``."""

    kind: Literal["json_schema", "regex", "ebnf"]
    source: str

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, object]) -> GrammarSpec:
        """The grammar of texts that fulfil ``schema``; properties come in the order in which it lists them."""
        return cls("json_schema", json.dumps(schema))


class TokenConstraint(Protocol):
    """The language of one request's generated tokens, with a place in it that can be moved forth and back.

    All host work. The loop walks a draft tree with `advance` and `rollback` to know what each node allows (see
    `outrider.text.walk_tree`), and advances over the tokens that a round emits.
    """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Size V of the target's vocabulary, padding ids included."""
        ...

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the tokens so far are a whole text of the language: the sequence may end, or has ended, here."""
        ...

    @abstractmethod
    def fill_mask(self, out: Tensor) -> None:
        """Overwrite ``out`` with the tokens allowed next.

        ``out``: contiguous ``[ceil(V / 32)]`` int32 on the CPU; bit ``i % 32`` of word ``i // 32`` is 1 where id i is
        allowed; bits from V on are 0. End-of-sequence ids are allowed exactly where `is_complete`. All is 0 after an
        end-of-sequence id, and where no token of the vocabulary continues the text.
        """
        ...

    @abstractmethod
    def advance(self, token_id: int) -> bool:
        """Move past ``token_id`` and return true; where it is not allowed (or no id at all) stay and return false."""
        ...

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens that `advance` accepted; there must be as many."""
        ...

    @abstractmethod
    def fork(self) -> TokenConstraint:
        """An independent constraint at the same place."""
        ...


class ConstraintFactory(Protocol):
    """Makes constraints for one tokenizer and vocabulary."""

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        """A constraint at the beginning of its text; what it takes to build is kept for the next call with ``spec``.

        Raises:
            InputError: ``spec`` is malformed, or allows no token at all.
        """
        ...


class ConstraintLoader(Protocol):
    """What an entry point of the group ``outrider.constraints`` names."""

    @abstractmethod
    def __call__(self, tokenizer_file: Path, vocab_size: int, stop_ids: Sequence[int]) -> ConstraintFactory:
        """A factory for the tokenizer in ``tokenizer_file`` (``tokenizer.json``).

        ``vocab_size``: the target's, padding included. ``stop_ids``: the ids that may end a complete text.

        Raises:
            ConfigurationError: a needed package is not installed, or there is no stop id.
            CheckpointError: the tokenizer file cannot be read, or is of a kind that is not known.
        """
        ...
