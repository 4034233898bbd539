"""`IncrementalDetokenizer`: text of a growing sequence, without decoding the whole of it every time."""

from __future__ import annotations

from bisect import bisect_left
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


class IncrementalDetokenizer:
    """Turns the generated tokens of one request into text, piece by piece.

    The pieces of all `push` calls and of `flush`, joined, equal ``codec.decode`` of all tokens. A piece never holds
    half a character: up to 3 trailing U+FFFD, which more bytes could still turn into a character, are held back.

    That needs a codec whose text only grows, apart from trailing U+FFFD, when tokens are appended. Byte-level codecs
    and codecs that strip leading space are such. A byte-fallback codec makes U+FFFD of a whole run of byte tokens while
    its last character is unfinished: nothing is returned meanwhile, and the run comes out right. Only if the run turns
    out not to be UTF-8 does it differ: the characters of it that were returned stay.

    Only a window of recent tokens is decoded, some 32 of them. It is moved forward only when its text is seen to be
    the end of the longer one's and its first 3 characters have been returned, so neither a character cut in two at its
    beginning nor a leading space that the codec strips there can show.

    Host only; reads nothing from a device.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._window: list[int] = []
        self._text: str = ""  # of the window
        self._shown: str = ""  # what of it has been returned
        self._num_doubtful = 0  # tokens since the codec took back some of that
        self._num_chars: int = 0
        self._ends: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Number of tokens pushed so far."""
        return len(self._ends)

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
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """The text still held back, now that no token follows; it counts as the last token's."""
        rest = self.pending
        self._shown = self._text
        self._num_chars += len(rest)
        if self._ends:
            self._ends[-1] = self._num_chars
        return rest

    def tokens_covering(self, num_chars: int) -> int:
        """The fewest leading tokens whose final text has at least ``num_chars`` characters.

        A character belongs to the token with which it became final: the one that holds its last byte, or for a
        U+FFFD that was held back the token that settled it. More characters than are final give all tokens.
        """
        if num_chars <= 0:
            return 0
        return min(bisect_left(self._ends, num_chars) + 1, len(self._ends))

    def chars_of(self, num_tokens: int) -> int:
        """Number of characters of final text after the first ``num_tokens`` tokens."""
        return self._ends[num_tokens - 1] if num_tokens > 0 else 0

    def _push_one(self, token_id: int) -> str:
        text = self._codec.decode([*self._window, token_id])
        piece = ""
        # A token without text anywhere (a special token) is left out: it would only make the window longer.
        if text != self._text or self._codec.decode([token_id, token_id]) != "":
            self._window.append(token_id)
            self._text = text
            if self._is_settled():
                piece = self._show()
                if len(self._window) > _MAX_TOKENS:
                    self._shorten()
        self._ends.append(self._num_chars)
        return piece

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
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD)
