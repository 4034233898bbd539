from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from outrider.errors import ClosedError, InputError
from outrider.interfaces import TextCodec
from outrider.text import StopMatcher, StopOutcome, StopRules
from tests.text.codecs import REPLACEMENT, BytesCodec, CountingCodec, SentencePieceCodec, TinyCodec, final_text

TINY = TinyCodec()
# Few characters, so that stops overlap, repeat and begin again; halves of 'é'; a special token.
BYTES = BytesCodec([b"", b"a", b"b", b"ab", b"ba", b"aab", b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"abab", b"\xff"])


@frozen
class Ending:
    kept: int
    text: str
    stop: str | tuple[int, ...] | None


def naive_string(rules: StopRules, final: str) -> tuple[str, str] | None:
    """The stop string that ends first, looked for character by character, the longest of those that end together."""
    for end in range(len(final) + 1):
        here = [string for string in rules.strings if final[:end].endswith(string)]
        if here:
            stop = max(here, key=len)
            return final[: end if rules.include_stop_in_text else end - len(stop)], stop
    return None


def naive(rules: StopRules, codec: TextCodec, ids: Sequence[int]) -> tuple[Ending, list[int]]:
    """The end by decoding everything again after every token, and how much text may be shown after each."""
    shown: list[int] = []
    for count in range(1, len(ids) + 1):
        final = final_text(codec.decode(ids[:count]))
        by_string = naive_string(rules, final)
        if by_string is not None:
            return Ending(count, *by_string), shown
        ended = [s for s in rules.sequences if tuple(ids[max(0, count - len(s)) : count]) == s]
        if ended:
            stop = max(ended, key=len)
            return Ending(
                count, codec.decode(ids[: count - (0 if rules.include_stop_in_text else len(stop))]), stop
            ), shown
        held = [len(final)]
        if not rules.include_stop_in_text:
            held += [n for n in range(len(final)) if any(string.startswith(final[n:]) for string in rules.strings)]
            held += [
                len(final_text(codec.decode(ids[:begin])))
                for begin in range(count)
                if any(s[: count - begin] == tuple(ids[begin:count]) for s in rules.sequences)
            ]
        shown.append(min(held))
    whole = codec.decode(ids)
    return Ending(len(ids), *(naive_string(rules, whole) or (whole, None))), shown


def run(matcher: StopMatcher, ids: Sequence[int], sizes: Sequence[int]) -> tuple[Ending, list[tuple[int, int]]]:
    """The end the matcher finds, and after which count of tokens how much text had been shown."""
    place, text, shown = 0, "", list[tuple[int, int]]()
    for size in [*sizes, len(ids)]:
        outcome = matcher.feed(ids[place : place + size])
        text += outcome.text
        if outcome.stop is not None:
            return Ending(place + outcome.kept, text, outcome.stop), shown
        place += outcome.kept
        if place:
            shown.append((place, len(text)))
    outcome = matcher.finish()
    assert outcome.kept == 0
    return Ending(place, text + outcome.text, outcome.stop), shown


def check(
    rules: StopRules,
    codec: TextCodec,
    ids: Sequence[int],
    sizes: Sequence[int],
    make: Callable[[StopRules, TextCodec], StopMatcher] = StopMatcher,
) -> None:
    ending, shown = run(make(rules, codec), ids, sizes)
    expected, expected_shown = naive(rules, codec, ids)
    assert ending == expected
    for count, num_chars in shown:
        assert num_chars == expected_shown[count - 1]


@st.composite
def cases(
    draw: st.DrawFn, codec: TextCodec, ids: st.SearchStrategy[list[int]]
) -> tuple[StopRules, list[int], list[int]]:
    """Ids, stops that are mostly parts of their text and of themselves, and a division into feeds."""
    found = draw(ids)
    text = codec.decode(found)

    def part(length: int, longest: int) -> slice:
        begin = draw(st.integers(0, max(length - 1, 0)))
        return slice(begin, begin + draw(st.integers(1, longest)))

    strings = [text[part(len(text), 7)] for _ in range(draw(st.integers(0, 3)))]
    strings += draw(st.lists(st.text(alphabet="abé" + REPLACEMENT, min_size=1, max_size=5), max_size=2))
    sequences = [tuple(found[part(len(found), 4)]) for _ in range(draw(st.integers(0, 2)))]
    sequences += draw(st.lists(st.lists(st.sampled_from(found or [1]), min_size=1, max_size=3).map(tuple), max_size=1))
    if draw(st.booleans()):  # a stop that can only just not be reached
        strings = [string + "\x00" for string in strings]
        sequences = [(*sequence, 5000) for sequence in sequences]
    rules = StopRules([s for s in strings if s], [s for s in sequences if s], draw(st.booleans()))
    return rules, found, draw(st.lists(st.integers(0, 6), max_size=12))


@settings(max_examples=600, deadline=None)
@given(case=cases(BYTES, st.lists(st.integers(0, 11), max_size=30)))
def test_the_cut_is_that_of_looking_after_every_token(case: tuple[StopRules, list[int], list[int]]) -> None:
    rules, ids, sizes = case
    check(rules, BYTES, ids, sizes)


@settings(max_examples=150, deadline=None)
@given(case=cases(TINY, st.text(alphabet="the cat 🦀é\n", max_size=60).map(TINY.encode)))
def test_the_cut_with_the_embedded_tokenizer(case: tuple[StopRules, list[int], list[int]]) -> None:
    rules, ids, sizes = case
    check(rules, TINY, ids, sizes)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 4095), max_size=80), sizes=st.lists(st.integers(0, 9), max_size=20))
def test_without_rules_the_text_is_the_whole_decode(ids: list[int], sizes: list[int]) -> None:
    ending, shown = run(StopMatcher(StopRules(), TINY), ids, sizes)
    assert ending == Ending(len(ids), TINY.decode(ids), None)
    assert all(num_chars == len(final_text(TINY.decode(ids[:count]))) for count, num_chars in shown)


def check_one_by_one(rules: StopRules, codec: TextCodec, ids: Sequence[int], sizes: Sequence[int]) -> None:
    """The end, and the text shown at each border of feeds, are those of feeds of one token."""
    ending, shown = run(StopMatcher(rules, codec), ids, sizes)
    expected, stepwise = run(StopMatcher(rules, codec), ids, [1] * len(ids))
    assert ending == expected
    by_count = dict(stepwise)
    assert all(num_chars == by_count[count] for count, num_chars in shown)


@pytest.mark.parametrize("strip_all", [False, True])
def test_the_cut_with_codecs_that_strip_leading_space(strip_all: bool) -> None:
    codec = SentencePieceCodec(["", "\u2581", "\u2581a", "a", "b", "\u2581ab", "\u2581\u2581", "é"], strip_all)

    @settings(max_examples=150, deadline=None)
    @given(case=cases(codec, st.lists(st.integers(0, 7), max_size=60)))
    def holds(case: tuple[StopRules, list[int], list[int]]) -> None:
        rules, ids, sizes = case
        check(rules, codec, ids, sizes)

    holds()


# 'é' and newline as bytes, halves of them, and a byte that is in no character.
FALLBACK = SentencePieceCodec(["\u2581", "a", "b", "<0xC3>", "<0xA9>", "<0x0A>", "<0xFF>", "ab"], strip_all=False)
fallback_ids = st.lists(
    st.sampled_from([[0], [1], [2], [3, 4], [3, 4, 3, 4], [5], [7], [3], [5, 3], [6]]), max_size=40
).map(lambda parts: [token_id for part in parts for token_id in part])


@settings(max_examples=300, deadline=None)
@given(case=cases(FALLBACK, fallback_ids))
def test_runs_of_bytes_are_cut_alike_however_they_are_divided(case: tuple[StopRules, list[int], list[int]]) -> None:
    rules, ids, sizes = case
    check_one_by_one(rules, FALLBACK, ids, sizes)


@pytest.mark.parametrize("rules", [StopRules(), StopRules(["\x00", "ab\x00"]), StopRules(["\x00"], [(4000, 5000)])])
def test_a_round_that_touches_no_stop_costs_about_one_decode(rules: StopRules) -> None:
    codec = CountingCodec(TINY)
    matcher = StopMatcher(rules, codec)
    ids = TINY.encode("The cat sat on the mat, né 漢字 🦀. " * 10)[:150]
    for place in range(0, 150, 5):
        matcher.feed(ids[place : place + 5])
    assert len(codec.sizes) <= 2.2 * 30


class _ForgetsHalfAStop(StopMatcher):
    @override
    def _held_by_strings(self) -> int:
        return 0


class _HoldsTooMuch(StopMatcher):
    @override
    def _held_by_strings(self) -> int:
        return len(self._buffer)


class _ForgetsHalfASequence(StopMatcher):
    @override
    def _held_by_sequences(self) -> int:
        return 0


class _LooksForStringsOnly(StopMatcher):
    @override
    def _match_sequence(self) -> None:
        return None


class _LooksOnceARound(StopMatcher):
    @override
    def feed(self, token_ids: Sequence[int]) -> StopOutcome:
        return evolve(super().feed(token_ids), kept=len(token_ids))


@pytest.mark.parametrize(
    ("broken", "rules"),
    [
        (_ForgetsHalfAStop, StopRules(["bba"])),
        (_HoldsTooMuch, StopRules(["bba"])),
        (_ForgetsHalfASequence, StopRules([], [(2, 2)])),
        (_LooksForStringsOnly, StopRules([], [(2, 1)])),
    ],
)
def test_the_check_fails_for_broken_matchers(broken: type[StopMatcher], rules: StopRules) -> None:
    ids, sizes = [1, 2, 2, 1, 2], [1] * 5
    check(rules, BYTES, ids, sizes)
    with pytest.raises(AssertionError):
        check(rules, BYTES, ids, sizes, broken)


def test_the_check_fails_for_a_matcher_that_cuts_at_rounds() -> None:
    rules, ids, sizes = StopRules(["bb"]), [1, 2, 2, 1, 2], [2, 3]
    check(rules, BYTES, ids, sizes)
    with pytest.raises(AssertionError):
        check(rules, BYTES, ids, sizes, _LooksOnceARound)


def test_a_stop_may_begin_in_one_token_and_end_in_another_of_a_later_round() -> None:
    matcher = StopMatcher(StopRules(["bab"]), BYTES)
    assert matcher.feed([1, 3]) == StopOutcome(2, "aa")
    # 'abab' completes the stop inside it; the ids keep it, the text ends before the stop.
    assert matcher.feed([10, 1, 1]) == StopOutcome(1, "", "bab")


def test_the_stop_may_be_kept_in_the_text() -> None:
    matcher = StopMatcher(StopRules("bab", include_stop_in_text=True), BYTES)
    assert matcher.feed([1, 3]) == StopOutcome(2, "aab")
    assert matcher.feed([10, 1, 1]) == StopOutcome(1, "ab", "bab")


def test_of_several_stops_the_one_that_ends_first_counts() -> None:
    assert StopMatcher(StopRules(["abab", "ba"]), BYTES).feed([10]) == StopOutcome(1, "a", "ba")
    assert StopMatcher(StopRules(["b", "ab"]), BYTES).feed([10]) == StopOutcome(1, "", "ab")


def test_a_stop_sequence_may_straddle_rounds_and_is_cut_from_the_text() -> None:
    matcher = StopMatcher(StopRules(sequences=[(2, 3)]), BYTES)
    assert matcher.feed([1, 2]) == StopOutcome(2, "a")
    assert matcher.feed([2]) == StopOutcome(1, "b")
    assert matcher.feed([3, 1]) == StopOutcome(1, "", (2, 3))


def test_a_stop_sequence_that_completes_a_character() -> None:
    """Text is that of the ids before the sequence, which hold half a character."""
    assert StopMatcher(StopRules(sequences=[(7,)]), BYTES).feed([1, 6, 7]) == StopOutcome(3, f"a{REPLACEMENT}", (7,))
    kept = StopRules(sequences=[(7,)], include_stop_in_text=True)
    assert StopMatcher(kept, BYTES).feed([1, 6, 7]) == StopOutcome(3, "aé", (7,))


def test_held_text_comes_out_at_the_end() -> None:
    matcher = StopMatcher(StopRules(["abc"], [(6, 1)]), BYTES)
    assert matcher.feed([3, 6]) == StopOutcome(2, "")
    assert matcher.finish() == StopOutcome(0, f"ab{REPLACEMENT}")


def test_text_that_becomes_final_at_the_end_may_complete_a_stop() -> None:
    matcher = StopMatcher(StopRules([f"b{REPLACEMENT}"]), BYTES)
    assert matcher.feed([3, 6]) == StopOutcome(2, "a")
    assert matcher.finish() == StopOutcome(0, "", f"b{REPLACEMENT}")


def test_an_ended_matcher_is_closed() -> None:
    matcher = StopMatcher(StopRules(["a"]), BYTES)
    matcher.feed([1])
    with pytest.raises(ClosedError, match="fed tokens after its request had ended"):
        matcher.feed([1])
    with pytest.raises(ClosedError, match="finished after its request had ended"):
        matcher.finish()


def test_rules_that_end_everything_are_refused_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        StopRules(["x", ""], [(), (4, -1)])
    message = str(caught.value)
    assert "3 problems" in message
    assert "stop string 1 is empty" in message
    assert "stop sequence 0 is empty" in message
    assert "stop sequence 1 is [4, -1]" in message


def test_a_long_stop_string_costs_no_more_than_itself() -> None:
    tracemalloc.start()
    try:
        matcher = StopMatcher(StopRules(("b" * 100_000 + "a",)), BYTES)
        shown = "".join(matcher.feed([token]).text for token in (1, 2, 2, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shown == "abba"
    assert peak < 1_000_000
