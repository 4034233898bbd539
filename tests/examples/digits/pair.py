"""A pair of the digits' sizes, hardly trained, and its processor as transformers reads it from files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from PIL.Image import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoProcessor

from examples.digits.tokens import save_processor, train_tokenizer

__all__ = ["Processor", "load_processor", "small_processor", "small_tokenizer"]


class _Inputs(Protocol):
    input_ids: Tensor
    pixel_values: Tensor


class _Loaded(Protocol):
    def __call__(self, *, text: str, images: Sequence[Image] | None, return_tensors: str) -> _Inputs: ...

    def image_processor(self, images: Sequence[Image], *, return_tensors: str) -> _Inputs: ...

    def apply_chat_template(
        self, conversation: Sequence[object], *, add_generation_prompt: bool, tokenize: bool = False
    ) -> str: ...


class Processor:
    """A `LlavaProcessor` with types."""

    def __init__(self, loaded: _Loaded) -> None:
        self._loaded = loaded

    def pixels(self, images: Sequence[Image]) -> Tensor:
        """``[N, 3, S, S]``."""
        return self._loaded.image_processor(images, return_tensors="pt").pixel_values

    def ids(self, text: str, images: Sequence[Image] | None) -> Tensor:
        """``[T]`` of a prompt, each image at the length that it has in the model."""
        return self._loaded(text=text, images=images, return_tensors="pt").input_ids[0]

    def rendered(self, messages: Sequence[object]) -> str:
        """The prompt text of a conversation."""
        return self._loaded.apply_chat_template(messages, add_generation_prompt=True)


def load_processor(directory: Path) -> Processor:
    """The processor in ``directory``."""
    loaded: object = AutoProcessor.from_pretrained(directory)  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType] - transformers' own
    return Processor(cast("_Loaded", loaded))


@cache
def small_tokenizer() -> Tokenizer:
    """The tokenizer that is trained with seed 0."""
    return train_tokenizer(0)


@cache
def small_processor() -> Processor:
    """Its processor, read back from files."""
    with tempfile.TemporaryDirectory() as directory:
        # AutoProcessor asks config.json which processor it is to make.
        (Path(directory) / "config.json").write_text('{"model_type": "llava"}', encoding="utf-8")
        save_processor(small_tokenizer(), Path(directory))
        return load_processor(Path(directory))
