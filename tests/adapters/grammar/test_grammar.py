"""xgrammar's constraints against the contract, and against an automaton made without it."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch

from outrider.errors import CheckpointError, ConfigurationError, InputError
from outrider.interfaces.constraint import ConstraintFactory, GrammarSpec, TokenConstraint
from outrider.text import TokenAutomaton, advance_path, unpack_mask, walk_tree
from outrider_adapters.grammar import create
from outrider_adapters.grammar.vocabulary import read_token_bytes
from tests.text.codecs import TOKENIZER_FILE, TinyCodec
from tests.text.trees import allowed_ids, by_forking, mask_of

pytest.importorskip("xgrammar", reason="the optional package xgrammar is not installed")

VOCAB, STOP = 4096, 0
CODEC = TinyCodec()
TOKEN_BYTES = read_token_bytes(TOKENIZER_FILE, VOCAB)
WORDS = ["cat", "car", "cart", "dog 🦀", "né", "nè"]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}
SPECS = [
    GrammarSpec("regex", "|".join(WORDS)),
    GrammarSpec("regex", "[a-z]+( [0-9]{1,3})*"),
    GrammarSpec.from_json_schema(SCHEMA),
    GrammarSpec("ebnf", 'root ::= "(" root ")" | [a-c]'),
    GrammarSpec.from_json_schema({"type": "array", "items": {"$ref": "#"}}),
]


@pytest.fixture(scope="module")
def factory() -> ConstraintFactory:
    return create(TOKENIZER_FILE, VOCAB, [STOP])


def automaton_of(words: Sequence[str]) -> TokenAutomaton:
    """Every way of spelling one of ``words`` in tokens: a state for every beginning, in bytes."""
    wanted = {word.encode() for word in words}
    begun = sorted({word[:n] for word in wanted for n in range(len(word) + 1)})
    state = {prefix: number for number, prefix in enumerate(begun)}
    transitions = {
        number: {
            token_id: state[prefix + piece]
            for token_id, piece in enumerate(TOKEN_BYTES)
            if piece and prefix + piece in state
        }
        for prefix, number in state.items()
    }
    return TokenAutomaton(transitions, {state[word] for word in wanted}, VOCAB, [STOP], start=state[b""])


def random_walk(constraint: TokenConstraint, seed: int, longest: int) -> list[int]:
    """Allowed tokens one after the other, until the end or ``longest`` of them."""
    choose = random.Random(seed)
    path: list[int] = []
    while len(path) < longest and (not path or path[-1] != STOP):
        allowed = allowed_ids(constraint)
        # Mostly the shortest pieces: they make the fewest choices for good.
        allowed.sort(key=lambda token_id: (token_id != STOP, len(TOKEN_BYTES[token_id])))
        token_id = choose.choice(allowed[: choose.choice([1, 5, len(allowed)])])
        advance_path(constraint, [token_id])
        path.append(token_id)
    return path


def random_tree(constraint: TokenConstraint, seed: int) -> tuple[list[int], list[int]]:
    """A tree of allowed paths with some tokens that are not allowed, or are no tokens at all, among them."""
    choose = random.Random(seed)
    forks: list[TokenConstraint] = [constraint.fork()]
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(16):
        parent = choose.randrange(len(forks))
        allowed = allowed_ids(forks[parent]) or [STOP]
        token_id = choose.choice([choose.choice(allowed), choose.choice(allowed), choose.choice([3, 70, VOCAB, -1])])
        fork = forks[parent].fork()
        fork.advance(token_id)
        forks.append(fork)
        tokens.append(token_id)
        parents.append(parent)
    return tokens, parents


def test_token_bytes_are_what_the_tokenizer_decodes() -> None:
    assert [token_id for token_id, piece in enumerate(TOKEN_BYTES) if not piece] == [0, 1, 2]
    choose = random.Random(0)
    for _ in range(500):
        ids = [choose.randrange(VOCAB) for _ in range(6)]
        assert b"".join(TOKEN_BYTES[token_id] for token_id in ids).decode("utf-8", "replace") == CODEC.decode(ids)


def test_all_spellings_of_given_words_and_nothing_else(factory: ConstraintFactory) -> None:
    """At every place that can be reached: the same masks as an automaton built from the words alone."""
    places = 0

    def compare(ours: TokenConstraint, reference: TokenConstraint) -> None:
        nonlocal places
        places += 1
        assert torch.equal(mask_of(ours), mask_of(reference))
        assert ours.is_complete == reference.is_complete
        for token_id in allowed_ids(reference):
            assert ours.advance(token_id)
            assert reference.advance(token_id)
            compare(ours, reference)
            ours.rollback(1)
            reference.rollback(1)

    compare(factory.compile(SPECS[0]), automaton_of(WORDS).constraint())
    assert places == 60


@pytest.mark.parametrize("spec", SPECS)
def test_a_tree_walk_is_what_forking_at_every_node_gives(factory: ConstraintFactory, spec: GrammarSpec) -> None:
    for seed in range(8):
        constraint = factory.compile(spec)
        advance_path(constraint, [token_id for token_id in random_walk(constraint.fork(), seed, 5) if token_id != STOP])
        tokens, parents = random_tree(constraint, seed)
        before = mask_of(constraint)
        assert torch.equal(walk_tree(constraint, tokens, parents), by_forking(constraint, tokens, parents))
        assert torch.equal(mask_of(constraint), before)


@pytest.mark.parametrize("spec", SPECS)
def test_the_contract_of_a_constraint(factory: ConstraintFactory, spec: GrammarSpec) -> None:
    """Allowed is what advances; the end is allowed where complete; going back restores every place."""
    for seed in range(4):
        constraint = factory.compile(spec)
        masks = [mask_of(constraint)]
        path = random_walk(constraint.fork(), seed, 12)
        for token_id in path:
            allowed = set(allowed_ids(constraint))
            assert (STOP in allowed) == constraint.is_complete
            for other in [*range(VOCAB), -1, VOCAB, 10**6]:
                accepted = constraint.advance(other)
                assert accepted == (other in allowed)
                if accepted:
                    constraint.rollback(1)
            assert constraint.advance(token_id)
            masks.append(mask_of(constraint))
        if path[-1] == STOP:
            assert constraint.is_complete
            assert not masks[-1].any()
            assert not constraint.advance(STOP)
        for mask in reversed(masks[:-1]):
            constraint.rollback(1)
            assert torch.equal(mask_of(constraint), mask)
        constraint.rollback(0)
        advance_path(constraint, path)
        constraint.rollback(len(path))
        assert torch.equal(mask_of(constraint), masks[0])


def test_texts_of_a_schema_fulfil_it(factory: ConstraintFactory) -> None:
    complete = 0
    for seed in range(12):
        path = random_walk(factory.compile(SPECS[2]), seed, 400)
        if path[-1] != STOP:
            continue
        complete += 1
        # Not strict: xgrammar lets control characters into strings of limited length.
        value = cast("dict[str, object]", json.loads(CODEC.decode(path), strict=False))
        assert list(value) == ["name", "kind", "age", "tags"]
        name, age, tags = value["name"], value["age"], value["tags"]
        assert isinstance(name, str)
        assert len(name) <= 6
        assert value["kind"] in ("cat", "dog")
        assert isinstance(age, int)
        assert 0 <= age <= 120
        assert isinstance(tags, list)
        assert len(cast("list[object]", tags)) <= 3
        assert all(isinstance(tag, bool) for tag in cast("list[object]", tags))
    assert complete >= 6


def test_texts_of_a_regular_expression_match_it(factory: ConstraintFactory) -> None:
    texts = [CODEC.decode(random_walk(factory.compile(SPECS[1]), seed, 300)) for seed in range(12)]
    assert all(re.fullmatch(r"[a-z]+( [0-9]{1,3})*", text) for text in texts)
    assert len(set(texts)) > 6


def test_masks_cover_a_padded_vocabulary() -> None:
    padded = create(TOKENIZER_FILE, VOCAB + 37, [STOP, 2]).compile(GrammarSpec("regex", "a?"))
    assert padded.vocab_size == VOCAB + 37
    mask = mask_of(padded)
    assert allowed_ids(padded) == [STOP, 2, TOKEN_BYTES.index(b"a")]
    assert unpack_mask(mask, 32 * len(mask)).sum() == 3  # nor are bits past the vocabulary set


def test_a_compiled_grammar_is_kept() -> None:
    from outrider_adapters.grammar.factory import XGrammarFactory

    factory = XGrammarFactory(TOKENIZER_FILE, VOCAB, [STOP])
    first = factory.compile(SPECS[2])
    size = factory.cache_bytes
    assert size > 0
    second = factory.compile(SPECS[2])
    assert factory.cache_bytes == size
    first.advance(allowed_ids(first)[0])
    assert not torch.equal(mask_of(first), mask_of(second))  # what is kept is the grammar, not the place in it
    factory.compile(SPECS[0])
    assert factory.cache_bytes > size


def test_json_on_one_line() -> None:
    from outrider_adapters.grammar.factory import XGrammarFactory

    newline = CODEC.encode("{\n")
    spec = GrammarSpec.from_json_schema(SCHEMA)
    free = XGrammarFactory(TOKENIZER_FILE, VOCAB, [STOP]).compile(spec)
    tight = XGrammarFactory(TOKENIZER_FILE, VOCAB, [STOP], any_whitespace=False).compile(spec)
    assert all(free.advance(token_id) for token_id in newline)
    assert not all(tight.advance(token_id) for token_id in newline)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec("regex", "(a"), r"regex '\(a': .*parenthesis is not closed"),
        (GrammarSpec("json_schema", '{"type": '), "json_schema .*Failed to parse JSON"),
        (GrammarSpec("json_schema", '{"type": "objec"}'), 'Unsupported type "objec"'),
        (GrammarSpec("ebnf", "root ::= missing"), 'Rule "missing" is not defined'),
        (GrammarSpec("regex", r"[^\s\S]"), r"regex .*: allows no token at all, not even the end of the sequence"),
    ],
)
def test_a_grammar_that_is_none_is_refused(factory: ConstraintFactory, spec: GrammarSpec, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        factory.compile(spec)
    assert ".cc:" not in str(caught.value)


def test_refused_tokens_are_refused_in_silence(factory: ConstraintFactory, capfd: pytest.CaptureFixture[str]) -> None:
    constraint = factory.compile(GrammarSpec("regex", "a"))
    for token_id in (1, 2, -1, VOCAB, 3, TOKEN_BYTES.index(b"a"), STOP, STOP):
        constraint.advance(token_id)
    assert mask_of(constraint).eq(0).all()
    assert capfd.readouterr() == ("", "")


def test_stop_ids_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="no stop id is given"):
        create(TOKENIZER_FILE, VOCAB, [])
    with pytest.raises(ConfigurationError, match="stop id 4096 is outside the target's vocabulary of 4096 ids"):
        create(TOKENIZER_FILE, VOCAB, [0, 4096])


def test_without_xgrammar_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'outrider\[grammar\]'"):
        create(TOKENIZER_FILE, VOCAB, [STOP])


def _write(directory: Path, decoder: object, vocab: dict[str, int]) -> Path:
    file = directory / "tokenizer.json"
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "</s>", "special": True, **added},
            {"id": 1, "content": "\u2581\u2581!", "special": False, **added},
        ],
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": list[str](), "byte_fallback": True},
    }
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return file


FALLBACK_VOCAB = {"</s>": 0, "\u2581\u2581!": 1, "<0xC3>": 2, "<0xA9>": 3, "\u2581a": 4, "b": 5}


def test_token_bytes_of_a_byte_fallback_tokenizer(tmp_path: Path) -> None:
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    file = _write(tmp_path, {"type": "Sequence", "decoders": decoders}, FALLBACK_VOCAB)
    assert read_token_bytes(file, 8) == [b"", b"  !", b"\xc3", b"\xa9", b" a", b"b", b"", b""]
    assert read_token_bytes(file, 3) == [b"", b"  !", b"\xc3"]
    constraint = create(file, 8, [0]).compile(GrammarSpec("regex", "é a|b"))
    assert allowed_ids(constraint) == [2, 5]
    advance_path(constraint, [2, 3, 4, 0])


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    wordpiece = _write(tmp_path, {"type": "WordPiece", "prefix": "##", "cleanup": True}, FALLBACK_VOCAB)
    with pytest.raises(CheckpointError, match="the decoder is WordPiece; grammar constraints need"):
        read_token_bytes(wordpiece, 8)
    none = _write(tmp_path, None, FALLBACK_VOCAB)
    with pytest.raises(CheckpointError, match="the decoder is missing"):
        read_token_bytes(none, 8)
    none.write_text('{"decoder": {"type": "ByteLevel"}}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer"):
        read_token_bytes(none, 8)
