"""Grammars over tokens: JSON schemas, regular expressions and EBNF, by xgrammar (the extra ``grammar``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from outrider.errors import ConfigurationError
from outrider.interfaces.constraint import ConstraintFactory, ConstraintLoader

__all__ = ["create", "loader"]


def create(tokenizer_file: Path, vocab_size: int, stop_ids: Sequence[int]) -> ConstraintFactory:
    """A factory of grammar constraints for the tokenizer in ``tokenizer_file``; a `ConstraintLoader`.

    Raises:
        ConfigurationError: xgrammar is not installed, or the stop ids are missing or outside the vocabulary.
        CheckpointError: the tokenizer file cannot be read, or is of a kind that is not known.
    """
    if find_spec("xgrammar") is None:
        raise ConfigurationError(
            "grammar constraints were asked for, but the package xgrammar is not installed; "
            "install it with: pip install 'outrider[grammar]'"
        )
    from outrider_adapters.grammar.factory import XGrammarFactory  # needs the optional package

    return XGrammarFactory(tokenizer_file, vocab_size, stop_ids)


def loader() -> ConstraintLoader:
    """What makes factories of grammar constraints (entry point ``outrider.constraints``)."""
    return create
