"""`StopRules` and `StopMatcher`: where a request's generation ends by text or by token sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen

from outrider.errors import ClosedError, InputError, Problems
from outrider.interfaces import TextCodec
from outrider.text.detokenize import IncrementalDetokenizer

__all__ = ["StopMatcher", "StopOutcome", "StopRules"]


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _sequences(values: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ids) for ids in values)


@frozen
class StopRules:
    """Texts and token sequences that end a request.

    ``strings`` are looked for in the generated text (a single string counts as a list of one), ``sequences`` in the
    generated ids; neither is looked for in the prompt, nor across its end. ``include_stop_in_text``: whether the text
    keeps the stop. The ids keep it in any case.

    Raises:
        InputError: an empty stop string or sequence (it would end everything at once), or a negative id.
    """

    strings: tuple[str, ...] = field(default=(), converter=_strings)
    sequences: tuple[tuple[int, ...], ...] = field(default=(), converter=_sequences)
    include_stop_in_text: bool = False

    def __attrs_post_init__(self) -> None:
        with Problems("stop rules", InputError) as problems:
            for index, string in enumerate(self.strings):
                if not string:
                    problems.add(f"stop string {index} is empty; give at least one character, or leave it out")
            for index, sequence in enumerate(self.sequences):
                if not sequence:
                    problems.add(f"stop sequence {index} is empty; give at least one token id, or leave it out")
                if any(token_id < 0 for token_id in sequence):
                    problems.add(f"stop sequence {index} is {list(sequence)}; token ids start at 0")


@frozen
class StopOutcome:
    """What became of the tokens of one feed.

    ``kept``: how many of the tokens fed by this call belong to the output; all of them where nothing matched.
    ``text``: text that may be shown now; all such texts of a request, joined, are its text.
    ``stop``: the string or the sequence that ended the request, ``None`` while it goes on.
    """

    kept: int
    text: str
    stop: str | tuple[int, ...] | None = None


class StopMatcher:
    """Finds where one request ends, in tokens as they are emitted, several at a time.

    The answer is that of looking after every single token, however the tokens are divided into feeds:

    - The request ends with the first token after which the final text (see `IncrementalDetokenizer`) holds a stop
      string, or the generated ids end in a stop sequence. A stop string may begin and end inside tokens, and
      span feeds. That token is the last one kept: ids are the fewest whose text covers the stop.
    - Among several stop strings the one that ends first in the text counts, the longest of those that end together;
      a stop string goes before a sequence that ends with the same token.
    - Text ends before the stop string, or where a stop sequence's first token begins (it is then the text of the ids
      before the sequence). With ``include_stop_in_text`` it ends after the stop string or the whole sequence; text
      that the last token holds beyond the stop string is dropped either way.
    - Until then exactly the text that a stop may still take away is held back: the longest end of the text that is
      the beginning of a stop string, or the text of the last tokens if they are the beginning of a stop sequence.
      With ``include_stop_in_text`` that is nothing.

    vLLM cuts ids and text in the same way; transformers' ``StopStringCriteria`` ends at the same token but leaves the
    stop string, and what follows it in the token, in the text.

    Host only. A matcher serves one request.
    """

    def __init__(self, rules: StopRules, codec: TextCodec) -> None:
        self._rules = rules
        self._detokenizer = IncrementalDetokenizer(codec)
        self._max_sequence = max((len(sequence) for sequence in rules.sequences), default=0)
        self._sequence_ids = frozenset(token_id for sequence in rules.sequences for token_id in sequence)
        self._buffer = ""  # the end of the final text, in which every possible stop string lies
        self._buffer_start = 0  # the place of its first character in the final text
        self._num_shown = 0  # how many of its characters have been returned
        # The last ids that are in some stop sequence, as many as the longest has, and before each of them the length of
        # the final text and the text held back by the detokenizer.
        self._recent: list[int] = []
        self._text_before: list[tuple[int, str]] = []
        self._ended = False

    @property
    def num_tokens(self) -> int:
        """Number of tokens fed and kept so far."""
        return self._detokenizer.num_tokens

    def feed(self, token_ids: Sequence[int]) -> StopOutcome:
        """What the next emitted tokens bring: how many are kept, the text to show, and the stop that matched.

        Raises:
            ClosedError: the request has ended already, by a stop or by `finish`.
        """
        self._require_open("fed tokens")
        outcome = self._feed_together(token_ids) if len(token_ids) > 1 else None
        if outcome is not None:
            return outcome
        text = ""
        for index, token_id in enumerate(token_ids):
            self._push(token_id)
            ending = self._match_string() or self._match_sequence()
            if ending is not None:
                self._ended = True
                rest, stop = ending
                return StopOutcome(index + 1, text + rest, stop)
            text += self._release()
        return StopOutcome(len(token_ids), text)

    def finish(self) -> StopOutcome:
        """The rest of the text of a request that ends for another reason (``kept`` is 0: nothing was fed).

        Text that was held back may become final here and complete a stop string; then ``stop`` names it and all
        tokens are kept.

        Raises:
            ClosedError: the request has ended already, by a stop or by `finish`.
        """
        self._require_open("finished")
        self._ended = True
        self._buffer += self._detokenizer.flush()
        text, stop = self._match_string() or (self._buffer[self._num_shown :], None)
        return StopOutcome(0, text, stop)

    def _require_open(self, action: str) -> None:
        if self._ended:
            raise ClosedError(f"stop matcher: {action} after its request had ended; make a new one for each request")

    def _feed_together(self, token_ids: Sequence[int]) -> StopOutcome | None:
        """The outcome if these tokens neither end the request nor touch a stop sequence; else ``None``, nothing is fed."""
        if not self._sequence_ids.isdisjoint(token_ids):
            return None
        buffer = self._buffer
        self._buffer += self._detokenizer.push(token_ids)
        if self._match_string() is not None:
            self._buffer = buffer
            self._detokenizer.undo()
            return None
        self._forget_sequences()
        return StopOutcome(len(token_ids), self._release())

    def _push(self, token_id: int) -> None:
        if token_id in self._sequence_ids:
            self._recent.append(token_id)
            self._text_before.append((self._detokenizer.num_chars, self._detokenizer.pending))
            if len(self._recent) > self._max_sequence:
                del self._recent[0], self._text_before[0]
        else:
            self._forget_sequences()
        self._buffer += self._detokenizer.push((token_id,))

    def _forget_sequences(self) -> None:
        self._recent.clear()
        self._text_before.clear()

    def _match_string(self) -> tuple[str, str] | None:
        """Text up to the stop string that ends first, and the string."""
        found: list[tuple[int, int, str]] = []
        for string in self._rules.strings:
            start = self._buffer.find(string)
            if start >= 0:
                found.append((start + len(string), start, string))
        if not found:
            return None
        end, start, string = min(found)
        return self._buffer[self._num_shown : end if self._rules.include_stop_in_text else start], string

    def _match_sequence(self) -> tuple[str, tuple[int, ...]] | None:
        """Text up to the longest stop sequence that ends here, and the sequence."""
        if not self._recent:
            return None
        found = [sequence for sequence in self._rules.sequences if self._ends_with(sequence, len(sequence))]
        if not found:
            return None
        sequence = max(found, key=len)
        if self._rules.include_stop_in_text:
            return self._buffer[self._num_shown :] + self._detokenizer.flush(), sequence
        num_chars, pending = self._text_before[-len(sequence)]
        return self._buffer[: num_chars - self._buffer_start] + pending, sequence

    def _release(self) -> str:
        """The text that may be shown now; forgets what no stop string can begin in."""
        num_settled = len(self._buffer) - self._held_by_strings()
        if self._rules.include_stop_in_text:
            released, num_shown = self._buffer[self._num_shown :], len(self._buffer)
        else:
            num_held_tokens = self._held_by_sequences()
            if num_held_tokens:
                num_settled = min(num_settled, self._text_before[-num_held_tokens][0] - self._buffer_start)
            released, num_shown = self._buffer[:num_settled], num_settled
        self._buffer = self._buffer[num_settled:]
        self._buffer_start += num_settled
        self._num_shown = num_shown - num_settled
        return released

    def _held_by_strings(self) -> int:
        """Length of the longest end of the buffer that begins a stop string."""
        buffer, longest = self._buffer, 0
        for string in self._rules.strings:
            begin = buffer.find(string[0], max(len(buffer) - len(string) + 1, 0))
            while begin >= 0 and not string.startswith(buffer[begin:]):
                begin = buffer.find(string[0], begin + 1)
            if begin >= 0:
                longest = max(longest, len(buffer) - begin)
        return longest

    def _held_by_sequences(self) -> int:
        """Number of last tokens that begin a stop sequence, the most there are."""
        if not self._recent:
            return 0
        begun = (n for ids in self._rules.sequences for n in range(1, len(ids)) if self._ends_with(ids, n))
        return max(begun, default=0)

    def _ends_with(self, sequence: tuple[int, ...], length: int) -> bool:
        """Whether the generated ids end in the first ``length`` ids of ``sequence``."""
        return len(self._recent) >= length and tuple(self._recent[-length:]) == sequence[:length]
