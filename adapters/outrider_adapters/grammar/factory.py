"""`XGrammarFactory`: grammars compiled by xgrammar, with its cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override
from xgrammar import Grammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

from outrider.errors import ConfigurationError, InputError, Problems
from outrider.interfaces.constraint import ConstraintFactory, GrammarSpec, TokenConstraint
from outrider.text import check_start
from outrider_adapters.grammar.constraint import XGrammarConstraint
from outrider_adapters.grammar.vocabulary import read_token_bytes

__all__ = ["XGrammarFactory"]

_CACHE_BYTES = 256 * 2**20
_COMPILE_THREADS = 8

_SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""Time and C++ source line, which xgrammar puts before its messages."""


class XGrammarFactory(ConstraintFactory):
    """Constraints for one tokenizer. Compiled grammars are cached, up to 256 MiB of them.

    What a grammar allows is xgrammar's reading of it. Of JSON strings with ``maxLength``, ``minLength`` or ``pattern`` it
    demands less than JSON does: control characters may stand in them unescaped.

    Source: Dong et al., XGrammar: Flexible and Efficient Structured Generation Engine for Large Language Models, 2024.
    """

    def __init__(
        self, tokenizer_file: Path, vocab_size: int, stop_ids: Sequence[int], any_whitespace: bool = True
    ) -> None:
        """Read the tokenizer. ``any_whitespace``: whether JSON may be laid out freely, or on one line only.

        Raises:
            ConfigurationError: no stop ids, or some outside the vocabulary.
            CheckpointError: the tokenizer file cannot be read, or is of a kind that is not known.
        """
        with Problems("grammar constraints", ConfigurationError) as problems:
            if not stop_ids:
                problems.add("no stop id is given, so no text could end; give the end-of-sequence ids of the target")
            for token_id in stop_ids:
                if not 0 <= token_id < vocab_size:
                    problems.add(f"stop id {token_id} is outside the target's vocabulary of {vocab_size} ids")
        self._vocab_size = vocab_size
        self._any_whitespace = any_whitespace
        token_bytes = read_token_bytes(tokenizer_file, vocab_size)
        # Special tokens have no bytes; xgrammar takes exactly the ids without bytes for special.
        self._special_ids = frozenset(token_id for token_id, piece in enumerate(token_bytes) if not piece) - {*stop_ids}
        info = TokenizerInfo(token_bytes, VocabType.RAW, vocab_size=vocab_size, stop_token_ids=list(stop_ids))
        self._compiler = GrammarCompiler(info, max_threads=_COMPILE_THREADS, cache_limit_bytes=_CACHE_BYTES)

    @property
    def cache_bytes(self) -> int:
        """Memory that compiled grammars take up."""
        return int(self._compiler.get_cache_size_bytes())

    @override
    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        try:
            # Concatenation, of one grammar, puts a rule above its root. Where a root refers to itself, xgrammar's masks
            # lack tokens that reach beyond the end of an inner one ("))" after "((a" of root ::= "(" root ")" | "a").
            compiled = self._compiler.compile_grammar(Grammar.concat(self._parse(spec)))
        except (RuntimeError, ValueError) as error:
            reason = _SOURCE_PLACE.sub("", str(error).strip())
            raise InputError(f"{spec.kind} {_shorten(spec.source)}: {reason}; correct it") from error
        constraint = XGrammarConstraint(GrammarMatcher(compiled), self._vocab_size, self._special_ids)
        check_start(constraint, f"{spec.kind} {_shorten(spec.source)}")
        return constraint

    def _parse(self, spec: GrammarSpec) -> Grammar:
        match spec.kind:
            case "json_schema":
                return Grammar.from_json_schema(spec.source, any_whitespace=self._any_whitespace)
            case "regex":
                return Grammar.from_regex(spec.source)
            case "ebnf":
                return Grammar.from_ebnf(spec.source)


def _shorten(source: str) -> str:
    return repr(source if len(source) <= 80 else f"{source[:77]}...")
