from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outrider.text.detokenize as detokenize
from outrider.interfaces import TextCodec
from outrider.text import IncrementalDetokenizer
from tests.text.codecs import REPLACEMENT, BytesCodec, CountingCodec, SentencePieceCodec, TinyCodec, final_text

TINY = TinyCodec()
EMOJI = "👩‍🚀🦀é漢 naïve 🏳️‍🌈"
BYTE_IDS = [token_id for token_id in range(3, 300) if len(TINY.decode([token_id])) == 1]
"""Ids of the embedded tokenizer that are single bytes, halves of characters among them."""

# All bytes of 'é', '漢', '😀' and of U+FFFD itself, whole and in pieces, wrong bytes, and a special token.
PIECES = (
    *(b"", b"a", b" ", b"\xc3", b"\xa9", b"\xe6", b"\xbc\xa2", b"\xbc", b"\xa2", b"\xf0\x9f", b"\x98\x80"),
    *(b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xef\xbf\xbd", b"\xef", b"\xbf", b"\xbd", b"\xff"),
    *(b"a\xf0\x9f\x98", b"\x80b"),
)
BYTES = BytesCodec(PIECES)
SP_PIECES = ("", "\u2581", "\u2581the", "a", "\u2581\u2581", ".", "漢")

tiny_ids = st.lists(
    st.one_of(st.integers(0, 4095), st.sampled_from(BYTE_IDS), st.sampled_from([0, 1, 2])), max_size=120
) | st.text(alphabet=EMOJI + "ab \n" + REPLACEMENT, max_size=60).map(TINY.encode)
bytes_ids = st.lists(st.integers(0, len(PIECES) - 1), max_size=150)
sp_ids = st.lists(st.integers(0, len(SP_PIECES) - 1), max_size=120)


def repeated(ids: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[int]]:
    """Long sequences as well: a pattern many times over, which moves the window again and again."""
    return st.one_of(ids, st.tuples(ids.map(lambda found: found[:7]), st.integers(1, 40)).map(lambda p: p[0] * p[1]))


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    found: list[Sequence[int]] = []
    place = 0
    for size in sizes:
        found.append(ids[place : place + size])
        place += size
    return [*found, ids[place:]]


def check(codec: TextCodec, ids: Sequence[int], sizes: Sequence[int]) -> None:
    """Joined pieces are the whole decode; after every push exactly the text that is final has been given."""
    for divided in (chunks(ids, sizes), chunks(ids, [1] * len(ids))):
        detokenizer, text, count = IncrementalDetokenizer(codec), "", 0
        for chunk in divided:
            text += detokenizer.push(chunk)
            count += len(chunk)
            whole = codec.decode(ids[:count])
            assert text == final_text(whole)
            assert text + detokenizer.pending == whole
            assert (detokenizer.num_tokens, detokenizer.num_chars) == (count, len(text))
        text += detokenizer.flush()
        assert text == codec.decode(ids)
        assert detokenizer.num_chars == len(text)


def check_one_by_one(codec: TextCodec, ids: Sequence[int], sizes: Sequence[int]) -> None:
    """After every push all is as after as many pushes of one token; also if the push was made twice, and undone once."""
    together, singly = IncrementalDetokenizer(codec), IncrementalDetokenizer(codec)
    for chunk in chunks(ids, sizes):
        piece = together.push(chunk)
        together.undo()
        assert (together.num_tokens, together.num_chars, together.pending) == (
            singly.num_tokens,
            singly.num_chars,
            singly.pending,
        )
        assert together.push(chunk) == piece
        assert piece == "".join([singly.push((token_id,)) for token_id in chunk])
    assert (together.num_tokens, together.num_chars) == (singly.num_tokens, singly.num_chars)
    assert together.flush() == singly.flush()


sizes = st.lists(st.integers(0, 9), max_size=20)


@settings(max_examples=150, deadline=None)
@given(ids=repeated(tiny_ids), sizes=sizes)
def test_the_embedded_tokenizer(ids: list[int], sizes: list[int]) -> None:
    check(TINY, ids, sizes)


@settings(max_examples=250, deadline=None)
@given(ids=repeated(bytes_ids), sizes=sizes)
def test_bytes_that_are_halves_of_characters_or_none(ids: list[int], sizes: list[int]) -> None:
    check(BYTES, ids, sizes)


@pytest.mark.parametrize("strip_all", [False, True])
def test_codecs_that_strip_leading_space(strip_all: bool) -> None:
    codec = SentencePieceCodec(SP_PIECES, strip_all)

    @settings(max_examples=150, deadline=None)
    @given(ids=repeated(sp_ids), sizes=sizes)
    def holds(ids: list[int], sizes: list[int]) -> None:
        check(codec, ids, sizes)

    holds()


FALLBACK = SentencePieceCodec([f"<0x{byte:02X}>" for byte in range(256)] + ["a", "b", "\u2581", ""], strip_all=False)


def fallback_ids(text: str) -> list[int]:
    return [
        token_id for char in text for token_id in ([256 + "ab ".index(char)] if char in "ab " else list(char.encode()))
    ]


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=EMOJI + "ab", max_size=100), times=st.integers(1, 4))
def test_byte_fallback_takes_back_no_character_of_a_run(text: str, times: int) -> None:
    ids = fallback_ids(text * times)
    detokenizer = IncrementalDetokenizer(FALLBACK)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == FALLBACK.decode(ids)
    assert detokenizer.num_chars == len(FALLBACK.decode(ids))


wild_ids = st.lists(
    st.one_of(
        st.text(alphabet=EMOJI + "ab", min_size=1, max_size=3).map(fallback_ids),
        st.sampled_from([[0x80], [0xE6], [0xF0, 0x9F], [0x0A], [0x0A, 0xE6], [0xC3, 0xA9, 0xE6]]),
    ),
    max_size=40,
).map(lambda parts: [token_id for part in parts for token_id in part])
wild_sizes = st.lists(st.integers(0, 9), max_size=30)


@settings(max_examples=300, deadline=None)
@given(ids=wild_ids, sizes=wild_sizes)
def test_byte_fallback_of_bytes_that_may_be_no_text_however_they_are_divided(ids: list[int], sizes: list[int]) -> None:
    check_one_by_one(FALLBACK, ids, sizes)


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=EMOJI + "ab\n", max_size=60), special_at=st.lists(st.integers(0, 90)), sizes=wild_sizes)
def test_special_tokens_among_bytes_however_they_are_divided(
    text: str, special_at: list[int], sizes: list[int]
) -> None:
    ids = fallback_ids(text)
    for place in special_at:
        ids.insert(place, 259)
    together, singly = IncrementalDetokenizer(FALLBACK), IncrementalDetokenizer(FALLBACK)
    for chunk in chunks(ids, sizes):
        assert together.push(chunk) == "".join([singly.push((token_id,)) for token_id in chunk])
    assert together.flush() == singly.flush() == ""


@settings(max_examples=100, deadline=None)
@given(ids=repeated(tiny_ids), sizes=wild_sizes)
def test_a_push_is_its_tokens_one_by_one_and_can_be_undone(ids: list[int], sizes: list[int]) -> None:
    check_one_by_one(TINY, ids, sizes)


def test_byte_fallback_goes_on_after_a_run_that_was_not_utf8() -> None:
    detokenizer = IncrementalDetokenizer(FALLBACK)
    ids = [*fallback_ids("漢"), *[0x80] * 9, *fallback_ids("ab é")]
    assert detokenizer.push(ids) + detokenizer.flush() == f"漢{REPLACEMENT * 11}ab é"


def test_no_piece_ends_inside_a_character() -> None:
    ids = [token_id for char in EMOJI for token_id in TINY.encode(char)]
    detokenizer = IncrementalDetokenizer(TINY)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert REPLACEMENT not in "".join(pieces)
    assert "".join(pieces) == EMOJI


def test_a_genuine_replacement_character_is_kept() -> None:
    detokenizer = IncrementalDetokenizer(TINY)
    ids = TINY.encode(f"x{REPLACEMENT}")
    assert detokenizer.push(ids) == "x"
    assert detokenizer.pending == REPLACEMENT
    assert detokenizer.push(TINY.encode("y")) == f"{REPLACEMENT}y"
    assert detokenizer.push(ids) + detokenizer.flush() == f"x{REPLACEMENT}"


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(TINY.encode("The cat sat on the mat. ") * 60, id="text"),
        pytest.param(TINY.encode(EMOJI) * 60, id="emoji"),
        pytest.param(BYTE_IDS[-1:] * 900, id="wrong bytes"),
        pytest.param([2] * 900, id="special"),
        pytest.param([*TINY.encode("a"), *[0] * 900], id="special after text"),
        pytest.param(TINY.encode(" ") * 900, id="spaces"),
        pytest.param([*[0] * 8, *TINY.encode("a")] * 100, id="special among text"),
        pytest.param([*[0] * 5, *TINY.encode("é"), *[1] * 3, *TINY.encode("🦀")] * 60, id="special among emoji"),
    ],
)
def test_the_window_is_bounded(ids: list[int]) -> None:
    _check_bounded(TINY, ids)


@pytest.mark.parametrize("text", ["é", "漢", "🦀", "é漢🦀", "漢a"])
def test_the_window_is_bounded_in_runs_of_bytes(text: str) -> None:
    _check_bounded(FALLBACK, fallback_ids(text * 300))


def test_the_window_is_bounded_in_a_run_that_is_not_utf8() -> None:
    codec = CountingCodec(FALLBACK)
    IncrementalDetokenizer(codec).push([*fallback_ids("漢"), *[0x80] * 900])
    assert max(codec.sizes) <= 48


def _check_bounded(codec: TextCodec, ids: Sequence[int]) -> None:
    counting = CountingCodec(codec)
    detokenizer = IncrementalDetokenizer(counting)
    assert detokenizer.push(ids) + detokenizer.flush() == codec.decode(ids)
    assert max(counting.sizes) <= 48
    assert sum(counting.sizes) <= 48 * len(ids)


@pytest.mark.parametrize("text", ["The cat sat on the mat. ", "né 漢字 🦀 naïve "])
def test_a_push_of_several_tokens_costs_about_one_decode(text: str) -> None:
    counting = CountingCodec(TINY)
    detokenizer = IncrementalDetokenizer(counting)
    divided = chunks(TINY.encode(text * 40), [5] * 60)[:-1]
    for chunk in divided:
        detokenizer.push(chunk)
    assert len(counting.sizes) <= 2.2 * len(divided)  # two more for each 16 tokens, as the window moves


def test_tokens_without_text_cost_two_decodes_together() -> None:
    counting = CountingCodec(TINY)
    assert IncrementalDetokenizer(counting).push([0, 1, 2, 2, 2]) == ""
    assert len(counting.sizes) == 2


def _each_token_alone(codec: TextCodec, ids: Sequence[int]) -> str:
    return "".join(codec.decode([token_id]) for token_id in ids)


def _incremental(codec: TextCodec, ids: Sequence[int]) -> str:
    detokenizer = IncrementalDetokenizer(codec)
    return "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()


def _wrong_for_some(decode: Callable[[TextCodec, Sequence[int]], str]) -> bool:
    spaced = SentencePieceCodec(SP_PIECES, strip_all=False)
    emoji = [PIECES.index(byte) for byte in (b"\xf0", b"\x9f", b"\x98", b"\x80")]
    cases: list[tuple[TextCodec, list[int]]] = [(BYTES, [1] * 31 + emoji), (spaced, [2, 2, 3] * 40)]
    return any(decode(codec, ids) != codec.decode(ids) for codec, ids in cases)


def test_the_check_fails_without_context_or_without_the_windows_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _wrong_for_some(_incremental)
    assert _wrong_for_some(_each_token_alone)
    monkeypatch.setattr(detokenize, "_SYNC_CHARS", 0)
    monkeypatch.setattr(detokenize, "_KEEP_TOKENS", range(1, 2))
    assert _wrong_for_some(_incremental)


def test_the_check_fails_if_every_push_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ([*fallback_ids("aé"), 0xE6, *fallback_ids("b")], [4])
    check_one_by_one(FALLBACK, *case)

    def always(detokenizer: IncrementalDetokenizer, text: str) -> bool:
        return True

    monkeypatch.setattr(IncrementalDetokenizer, "_hides_nothing", always)
    with pytest.raises(AssertionError):
        check_one_by_one(FALLBACK, *case)
