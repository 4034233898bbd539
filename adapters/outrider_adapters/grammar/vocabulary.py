"""The bytes each token of a ``tokenizer.json`` stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer

from outrider.checkpoint import Config
from outrider.errors import CheckpointError

__all__ = ["read_token_bytes"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def read_token_bytes(tokenizer_file: Path, vocab_size: int) -> list[bytes]:
    """The bytes of ids 0 .. vocab_size - 1; empty for special tokens and for ids that the tokenizer does not have.

    Raises:
        CheckpointError: the file cannot be read, or its decoder is not one whose tokens stand for fixed bytes.
    """
    to_bytes = _decoder(Config.read(tokenizer_file))
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the tokenizers package raises plain Exception for every fault of a file
        raise CheckpointError(f"{tokenizer_file}: cannot be read as a tokenizer ({error})") from error
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    token_bytes = [b""] * vocab_size
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id < vocab_size and token_id not in special:
            token_bytes[token_id] = to_bytes(token)
    return token_bytes


def _decoder(config: Config) -> Callable[[str], bytes]:
    section = config.section("decoder")
    types = _decoder_types(section) if section is not None else set[str]()
    if "ByteLevel" in types:
        return _byte_level
    if types & {"ByteFallback", "Metaspace"}:
        return _byte_fallback
    raise CheckpointError(
        f"{config.where}: the decoder is {', '.join(sorted(types)) or 'missing'}; grammar constraints need a tokenizer "
        "whose tokens stand for fixed bytes: a decoder with ByteLevel, ByteFallback or Metaspace"
    )


def _decoder_types(section: Config) -> set[str]:
    types = {section.get_str("type")}
    nested = section.values.get("decoders")
    if isinstance(nested, list):
        for item in cast("list[object]", nested):
            if isinstance(item, dict):
                types |= _decoder_types(Config(f"{section.where}: decoders", cast("dict[str, object]", item)))
    return types


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's characters: printable bytes are themselves, the others the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()  # an added token, kept as written


def _byte_fallback(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes.fromhex(byte.group(1))
    return token.replace(_SPACE_MARK, " ").encode()
