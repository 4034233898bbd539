"""`MediaChat`: conversations with media by the chat template of a processor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError
from outrider.interfaces import ChatMessage

__all__ = ["MediaChat"]

_Part = dict[str, str]


class _Tokenizer(Protocol):
    """The part of a transformers tokenizer that renders templates; the library's own signatures are partly untyped."""

    @abstractmethod
    def apply_chat_template(
        self,
        conversation: list[dict[str, str | list[_Part]]],
        *,
        chat_template: str,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str: ...


class MediaChat:
    """Renders conversations; transformers is asked when the first one comes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Look for the template in the directory of ``checkpoint``."""
        self._directory = checkpoint.directory
        self._template = _find_template(checkpoint)
        self._tokenizer: _Tokenizer | None = None

    def render(self, messages: Sequence[ChatMessage]) -> str | None:
        """The prompt text of ``messages``, ready for the answer; ``None`` where the model has no template.

        A message's content is a text or a list of parts, ``{"type": "image"}``, ``{"type": "video"}`` and
        ``{"type": "text", "text": …}``.

        Raises:
            InputError: the template refuses the conversation, or leaves out one of its texts.
        """
        if self._template is None:
            return None
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self._directory)
        # Templates of processors walk over parts, and would walk over the letters of a text without a word.
        conversation = [{key: _parts(key, value) for key, value in message.items()} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of the model's author and may raise anything
            raise InputError(
                f"the chat template of {self._directory.name} refuses the conversation: {error}"
            ) from error
        for number, message in enumerate(conversation, 1):
            lost = [part["text"] for part in _text_parts(message.get("content")) if part["text"].strip() not in text]
            if lost:
                raise InputError(
                    f"the chat template of {self._directory.name} leaves out what message {number} says: {lost[0]!r}; "
                    "give the prompt as text"
                )
        return text


def _parts(key: str, value: str | Sequence[_Part] | object) -> str | list[_Part]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if key == "content" else value
    return [dict(part) for part in cast("Sequence[_Part]", value)]


def _text_parts(content: str | list[_Part] | None) -> list[_Part]:
    return [part for part in content if "text" in part] if isinstance(content, list) else []


def _find_template(checkpoint: Checkpoint) -> str | None:
    """The template of the processor, else that of the tokenizer, wherever versions of transformers wrote it."""
    file = checkpoint.directory / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: cannot be read as text ({error})") from error
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        config = checkpoint.optional_json(name)
        if config is not None and config.has("chat_template"):
            return config.get_str("chat_template")
    return None


def _load_tokenizer(directory: Path) -> _Tokenizer:
    from transformers import AutoTokenizer

    try:
        # transformers leaves the parameters and the result of this method untyped.
        loaded = cast("_Tokenizer", AutoTokenizer.from_pretrained(directory, local_files_only=True))  # pyright: ignore[reportUnknownMemberType] - see above
    except Exception as error:  # whatever the tokenizer's class raises
        raise CheckpointError(f"{directory}: the tokenizer cannot be read by transformers ({error})") from error
    return loaded
