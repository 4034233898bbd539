"""`TextCodec`: token ids to text and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["TextCodec"]


class TextCodec(Protocol):
    """A tokenizer, reduced to what generation needs."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens the model expects in front (begin-of-sequence)."""
        ...

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; incomplete UTF-8 at the end becomes U+FFFD."""
        ...

    @abstractmethod
    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """The prompt text of a conversation by the model's chat template; ``None`` when it has none."""
        ...
