"""`read_codec`: the tokenizer of a checkpoint as a `TextCodec`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tokenizers import Tokenizer

from outrider.checkpoint import Checkpoint, Config
from outrider.errors import CheckpointError, InputError
from outrider.interfaces import TextCodec

__all__ = ["HubCodec", "NotedCodec", "TokenizersCodec", "read_codec"]

_OTHER_FILES = ("tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "tekken.json")
_GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Tokenizer classes that know nothing of a model, so that only the files can say whether a prompt has a beginning."""
_NAMED_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


class NotedCodec(TextCodec, Protocol):
    """A codec that says what it decided where the tokenizer's files are silent."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Choices, each with its reason."""
        ...


class _HubTokenizer(Protocol):
    """The part of a transformers tokenizer that is used; the library's own signatures are partly untyped."""

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    @abstractmethod
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    @abstractmethod
    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


def read_codec(checkpoint: Checkpoint) -> NotedCodec | None:
    """The codec of ``checkpoint``: by the tokenizers library where ``tokenizer.json`` is there, else by transformers.

    ``None`` where the directory holds no tokenizer.

    Raises:
        CheckpointError: there is a tokenizer, but it cannot be read.
    """
    directory = checkpoint.directory
    settings = checkpoint.optional_json("tokenizer_config.json") or Config("tokenizer_config.json", {})
    chat = _ChatTemplate(directory, settings)
    if not (directory / "tokenizer.json").is_file():
        if not any((directory / name).is_file() for name in _OTHER_FILES):
            return None
        return HubCodec(_load_hub_tokenizer(directory), chat)
    try:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{directory / 'tokenizer.json'}: not a readable tokenizer ({error})") from error
    return TokenizersCodec(tokenizer, settings, checkpoint.config.get_optional_int("bos_token_id"), chat)


class TokenizersCodec(NotedCodec):
    """A ``tokenizer.json``, with the begin-of-sequence token as the tokenizer's config says.

    ``add_bos_token`` decides where it is given, else the tokenizer's own post-processor. Where a generic tokenizer says
    neither, but its config and the model's name the same begin token, distinct from the end token, prompts start with it.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Config, model_bos_id: int | None, chat: _ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        specials = [_token_text(settings, key) for key in _NAMED_SPECIALS]
        # Named specials are left out of text even where tokenizer.json does not mark them.
        known = [text for text in specials if text and tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens(known)  # pyright: ignore[reportUnknownMemberType] - its stub says list[Unknown]
        self._bos = specials[0]
        bos_id = tokenizer.token_to_id(self._bos) if self._bos else None
        adds_own = tokenizer.num_special_tokens_to_add(False) > 0
        said = settings.get_bool("add_bos_token", False) if settings.has("add_bos_token") else None
        self._own_specials = said is not False
        self._prefix: list[int] = []
        self._notes: tuple[str, ...] = ()
        if bos_id is None or said is False or adds_own:
            return
        if said:
            self._prefix = [bos_id]
        elif (
            settings.get_optional_str("tokenizer_class") in _GENERIC_CLASSES
            and bos_id == model_bos_id
            and specials[1] != self._bos
        ):
            self._prefix = [bos_id]
            self._notes = (
                f"prompts start with {self._bos} (id {bos_id}): both configs name it and add_bos_token is not given",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Choices, each with its reason."""
        return self._notes

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` with the begin-of-sequence token in front, once: a rendered chat may hold it already."""
        begun = self._bos is not None and text.startswith(self._bos)
        ids = self._tokenizer.encode(text, add_special_tokens=self._own_specials and not begun).ids
        return ids if begun else self._prefix + ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``, special tokens left out; incomplete UTF-8 at the end becomes U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """The prompt text of a conversation by the model's chat template; ``None`` when it has none.

        Raises:
            InputError: the template refuses the conversation.
        """
        return self._chat.render(messages)


class HubCodec(NotedCodec):
    """A tokenizer that only transformers can read, such as a sentencepiece model."""

    def __init__(self, tokenizer: _HubTokenizer, chat: _ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._chat = chat

    @property
    def notes(self) -> tuple[str, ...]:
        """Choices, each with its reason: none, transformers decides."""
        return ()

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` with the special tokens that transformers puts in front."""
        return self._tokenizer.encode(text, add_special_tokens=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``, special tokens left out."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """The prompt text of a conversation by the model's chat template; ``None`` when it has none.

        Raises:
            InputError: the template refuses the conversation.
        """
        return self._chat.render(messages)


class _ChatTemplate:
    """The chat template of a directory, rendered by transformers, which is imported when it is first needed."""

    def __init__(self, directory: Path, settings: Config) -> None:
        self._directory = directory
        self._is_there = settings.has("chat_template") or (directory / "chat_template.jinja").is_file()
        self._tokenizer: _HubTokenizer | None = None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        if not self._is_there:
            return None
        if self._tokenizer is None:
            self._tokenizer = _load_hub_tokenizer(self._directory)
        try:
            return self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of the model's author and may raise anything
            raise InputError(
                f"the chat template of {self._directory.name} refuses the conversation: {error}"
            ) from error


def _load_hub_tokenizer(directory: Path) -> _HubTokenizer:
    from transformers import AutoTokenizer

    try:
        # transformers leaves the parameters and the result of this method untyped.
        loaded = cast("_HubTokenizer", AutoTokenizer.from_pretrained(directory, local_files_only=True))  # pyright: ignore[reportUnknownMemberType] - see above
    except Exception as error:  # whatever the tokenizer's class raises
        raise CheckpointError(f"{directory}: the tokenizer cannot be read by transformers ({error})") from error
    return loaded


def _token_text(settings: Config, key: str) -> str | None:
    """A special token's text, given as a string or as an object with its ``content``."""
    value = settings.values.get(key)
    if isinstance(value, dict):
        section = settings.section(key)
        return None if section is None else section.get_optional_str("content")
    return settings.get_optional_str(key)
