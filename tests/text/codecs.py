"""Codecs of every kind that detokenisation must serve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from tokenizers import Tokenizer
from typing_extensions import override

from outrider.interfaces import TextCodec

TOKENIZER_FILE = Path(str(files("outrider_adapters"))) / "data" / "tiny-llama" / "tokenizer.json"
REPLACEMENT = "\ufffd"


class FakeCodec(TextCodec):
    """Decodes only."""

    @override
    def encode(self, text: str) -> list[int]:
        raise NotImplementedError("the tests of text decode only")

    @override
    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return None


class TinyCodec(FakeCodec):
    """The embedded byte-level BPE tokenizer; ids 0, 1 and 2 are special."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))

    @override
    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    @override
    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)


class BytesCodec(FakeCodec):
    """Tokens are pieces of bytes, lossily decoded; an empty piece is a special token."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = tuple(pieces)

    @override
    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.pieces[token_id] for token_id in token_ids).decode("utf-8", "replace")


class SentencePieceCodec(FakeCodec):
    """Pieces with U+2581 for space and ``<0xNN>`` for bytes; a leading space, or all of them, are stripped.

    A run of byte tokens that is not UTF-8 as a whole gives a U+FFFD for each byte.
    """

    def __init__(self, pieces: Sequence[str], strip_all: bool) -> None:
        self.pieces = tuple(pieces)
        self.strip_all = strip_all

    @override
    def decode(self, token_ids: Sequence[int]) -> str:
        text, run = "", b""
        for piece in [*(self.pieces[token_id] for token_id in token_ids), None]:
            byte = re.fullmatch("<0x(..)>", piece) if piece is not None else None
            if byte is not None:
                run += bytes.fromhex(byte.group(1))
                continue
            if piece == "":  # special: left out before anything else
                continue
            try:
                text += run.decode()
            except UnicodeDecodeError:
                text += REPLACEMENT * len(run)
            text, run = text + (piece or "").replace("\u2581", " "), b""
        return text.lstrip(" ") if self.strip_all else text.removeprefix(" ")


class CountingCodec(FakeCodec):
    """Passes on to another codec and remembers how many tokens each call decoded."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.sizes: list[int] = []

    @override
    def decode(self, token_ids: Sequence[int]) -> str:
        self.sizes.append(len(token_ids))
        return self._codec.decode(token_ids)


def final_text(text: str) -> str:
    """What of a decoded prefix no further token can change: all but up to 3 trailing U+FFFD."""
    held = min(len(text) - len(text.rstrip(REPLACEMENT)), 3)
    return text[: len(text) - held]
