"""`XGrammarFactory`: grammars compiled by xgrammar, with its cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

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
        info = TokenizerInfo(token_bytes, VocabType.RAW, vocab_size=vocab_size, stop_token_ids=list(stop_ids))
        self._compiler = GrammarCompiler(info, max_threads=_COMPILE_THREADS, cache_limit_bytes=_CACHE_BYTES)

    @property
    def cache_bytes(self) -> int:
        """Memory that compiled grammars take up."""
        return int(self._compiler.get_cache_size_bytes())

    @override
    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        try:
            compiled = self._compile(spec)
        except (RuntimeError, ValueError) as error:
            reason = _SOURCE_PLACE.sub("", str(error).strip())
            raise InputError(f"{spec.kind} {_shorten(spec.source)}: {reason}; correct it") from error
        constraint = XGrammarConstraint(GrammarMatcher(compiled), self._vocab_size)
        check_start(constraint, f"{spec.kind} {_shorten(spec.source)}")
        return constraint

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        match spec.kind:
            case "json_schema":
                return self._compiler.compile_json_schema(spec.source, any_whitespace=self._any_whitespace)
            case "regex":
                return self._compiler.compile_regex(spec.source)
            case "ebnf":
                return self._compiler.compile_grammar(spec.source)


def _shorten(source: str) -> str:
    return repr(source if len(source) <= 80 else f"{source[:77]}...")
