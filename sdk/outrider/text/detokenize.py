"""`IncrementalDetokenizer`: text of a growing sequence, without decoding the whole of it every time."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.interfaces import TextCodec

__all__ = ["IncrementalDetokenizer"]

_REPLACEMENT = "\ufffd"

_MAX_HELD = 3
"""An unfinished UTF-8 sequence has at most 3 bytes, and a codec makes at most one U+FFFD of each."""

_MAX_DOUBT = 3
"""For as many tokens a byte-fallback codec can take a character back while the next one is unfinished."""

_SYNC_CHARS = 3
"""A decoder that starts inside a character agrees with one that started before it after at most 3 bytes. Every
character of text stands for at least one byte, so what follows the first 3 characters of a window is the true text."""

_MAX_TOKENS = 32
_KEEP_TOKENS = range(16, 20)
"""Lengths tried for the shorter window; of 4 beginnings one after the other, one is the beginning of a character."""

_MAX_TOGETHER = 16
"""Tokens that join the window at once, at most; more than a round usually brings."""


class IncrementalDetokenizer:
    """Turns the generated tokens of one request into text, piece by piece.

    The pieces of all `push` calls and of `flush`, joined, equal ``codec.decode`` of all tokens. A piece never holds
    half a character: up to 3 trailing U+FFFD, which more bytes could still turn into a character, are held back. A push
    of several tokens gives what pushes of one token each give, mostly for one decode.

    That needs a codec whose text only grows, apart from trailing U+FFFD, when tokens are appended. Byte-level codecs
    and codecs that strip leading space are such. A byte-fallback codec makes U+FFFD of a whole run of byte tokens while
    its last character is unfinished: nothing is returned meanwhile, and the run comes out right. Only if the run turns
    out not to be UTF-8 does it differ: the characters of it that were returned stay, and it begins where the window does.

    Only a window of recent tokens is decoded, some 32 of them. It is moved forward only when its text is seen to be
    the end of the longer one's and its first 3 characters have been returned, so neither a character cut in two at its
    beginning nor a leading space that the codec strips there can show.

    Host only; reads nothing from a device.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._window: list[int] = []  # never changed in place
        self._text: str = ""  # of the window
        self._shown: str = ""  # what of it has been returned
        self._num_doubtful = 0  # tokens since the codec took back some of that
        self._num_tokens = 0
        self._num_chars = 0
        self._before_push = self._state()

    @property
    def num_tokens(self) -> int:
        """Number of tokens pushed so far."""
        return self._num_tokens

    @property
    def num_chars(self) -> int:
        """Number of characters of final text returned so far."""
        return self._num_chars

    @property
    def pending(self) -> str:
        """Text held back: U+FFFD that the next token may turn into a character, and that `flush` would return."""
        return self._text[len(self._shown) :]

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that becomes final with ``token_ids``; empty while a character is unfinished."""
        self._before_push = self._state()
        text, place = "", 0
        while place < len(token_ids):
            # The window moves at the same tokens as when they come one by one.
            room = _MAX_TOKENS + 1 - len(self._window)
            end = place + max(min(room, _MAX_TOGETHER), 1)
            text += self._push(token_ids[place:end])
            place = end
        return text

    def undo(self) -> None:
        """Back to before the last `push`: its tokens were not pushed, and what it returned does not count."""
        window, text, shown, num_doubtful, num_tokens, num_chars = self._before_push
        self._window, self._text, self._shown, self._num_doubtful = window, text, shown, num_doubtful
        self._num_tokens, self._num_chars = num_tokens, num_chars

    def flush(self) -> str:
        """The text still held back, now that no token follows."""
        rest = self.pending
        self._shown = self._text
        self._num_chars += len(rest)
        return rest

    def _state(self) -> tuple[list[int], str, str, int, int, int]:
        return self._window, self._text, self._shown, self._num_doubtful, self._num_tokens, self._num_chars

    def _push(self, token_ids: Sequence[int]) -> str:
        window = [*self._window, *token_ids]
        text = self._codec.decode(window)
        # Tokens without text anywhere (special tokens) are left out: they would only make the window longer.
        if text == self._text and self._codec.decode([*token_ids, *token_ids]) == "":
            self._num_tokens += len(token_ids)
            return ""
        if len(token_ids) > 1 and not self._hides_nothing(text):
            return "".join([self._push((token_id,)) for token_id in token_ids])
        self._num_tokens += len(token_ids)
        self._window, self._text = window, text
        if not self._is_settled():
            return ""
        piece = self._show()
        if len(window) > _MAX_TOKENS:
            self._shorten()
        return piece

    def _hides_nothing(self, text: str) -> bool:
        """Whether the same would be returned if the tokens that made the window's text ``text`` came one by one.

        A run of bytes that is U+FFFD as a whole may have been characters before its last token. One U+FFFD alone at
        either end is no such run: it is a single byte, or the codec makes U+FFFD of the last character only.
        """
        num_shown = len(self._shown)
        if self._num_doubtful or len(self._text) - num_shown > 1:
            return False
        return text.find(_REPLACEMENT, num_shown) in (-1, len(text) - 1) and text.startswith(self._shown)

    def _is_settled(self) -> bool:
        """Whether the window's text goes on from what was returned; after some tokens of doubt it is taken to."""
        if self._text.startswith(self._shown):
            self._num_doubtful = 0
            return True
        self._num_doubtful += 1
        if self._num_doubtful <= _MAX_DOUBT:
            return False
        self._shown = self._text[: len(self._shown)]
        return True

    def _show(self) -> str:
        num_final = len(self._text) - _num_held(self._text)
        piece = self._text[len(self._shown) : num_final]
        self._shown += piece
        self._num_chars += len(piece)
        return piece

    def _shorten(self) -> None:
        for num_tokens in _KEEP_TOKENS:
            window = self._window[-num_tokens:]
            text = self._codec.decode(window)
            num_shown = len(text) - len(self.pending)
            if num_shown >= _SYNC_CHARS and self._text.endswith(text):
                self._window, self._text, self._shown = window, text, text[:num_shown]
                return


def _num_held(text: str) -> int:
    if not text.endswith(_REPLACEMENT):
        return 0
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD)
