"""`IncrementalDetokenizer`: text of a growing sequence, without decoding the whole of it every time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from outrider.interfaces import TextCodec

__all__ = ["IncrementalDetokenizer"]

_REPLACEMENT = "\ufffd"

_MAX_HELD = 3
"""An unfinished UTF-8 sequence has at most 3 bytes, and a codec makes at most one U+FFFD of each."""

_SYNC_CHARS = 3
"""A decoder that starts inside a character agrees with one that started before it after at most 3 bytes. Every
character of text stands for at least one byte, so what follows the first 3 characters of a window is the true text."""

_KEEP_TOKENS = 16
_MAX_TOKENS = 32


class IncrementalDetokenizer:
    """Turns the generated tokens of one request into text, piece by piece.

    The pieces of all `push` calls and of `flush`, joined, equal ``codec.decode`` of all tokens. A piece never holds
    half a character: up to 3 trailing U+FFFD, which more bytes could still turn into a character, are held back.

    That needs a codec whose text only ever grows, apart from trailing U+FFFD, when tokens are appended. Byte-level
    codecs and codecs that strip leading space do; a byte-fallback codec does unless a complete character and invalid
    bytes follow each other in one run of byte tokens, where it takes the character back (what was streamed stays).

    Only a window of recent tokens is decoded, at most 32 tokens but for codecs that give a window's text no common
    end with the whole text. A window is moved forward only when its text is seen to be the end of the longer one's
    and its first 3 characters are final already, so neither a character cut in two at its beginning nor a leading
    space that the codec strips there can show.

    Host only; reads nothing from a device.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._window: list[int] = []
        self._window_text: str = ""
        self._window_final: int = 0
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
        return self._window_text[self._window_final :]

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that becomes final with ``token_ids``; empty while a character is unfinished."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """The text still held back, now that no token follows; it counts as the last token's."""
        rest = self.pending
        self._window_final = len(self._window_text)
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
        if text == self._window_text and self._codec.decode([token_id, token_id]) == "":
            pass  # no text anywhere (a special token): remembering it would only make the window longer
        else:
            self._window.append(token_id)
            self._window_text = text
            final = len(text) - _num_held(text)
            if final > self._window_final:
                piece = text[self._window_final : final]
                self._window_final = final
                self._num_chars += len(piece)
            if len(self._window) > _MAX_TOKENS:
                self._shorten()
        self._ends.append(self._num_chars)
        return piece

    def _shorten(self) -> None:
        window = self._window[-_KEEP_TOKENS:]
        text = self._codec.decode(window)
        final = len(text) - len(self.pending)
        if final >= _SYNC_CHARS and self._window_text.endswith(text):
            self._window, self._window_text, self._window_final = window, text, final


def _num_held(text: str) -> int:
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD)
