"""Toy images, a toy target that reads them among text, and what it generates, computed the slow way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import ContextLengthError, InputError
from outrider.interfaces import (
    ChatMessage,
    GraphRunner,
    LayerStackProvider,
    MediaBody,
    MultimodalProvider,
    PreparedPrompt,
    Target,
    TextCodec,
    VideoFrames,
)
from outrider.types import StackInputs
from tests.support.reference import causal_attention
from tests.support.toy_target import ToySizes, ToyStack

__all__ = ["ToyMedia", "greedy_after", "media_of", "seeing_target", "text_prompt", "toy_image", "with_toy_images"]

MAGIC = b"TOY"
LETTERS = "abcdefghijklmnopqrstuvwxyz ?!.,:0123456789"
MARK = "<image>"


def toy_image(height: int, width: int, seed: int) -> bytes:
    """The file of an image of ``height`` × ``width`` tokens."""
    return MAGIC + bytes([height, width, seed])


class Letters(TextCodec):
    """A letter a token, from id 1; texts begin with id 0."""

    def encode(self, text: str) -> list[int]:
        return [0, *(LETTERS.index(letter) + 1 for letter in text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(LETTERS[token - 1] for token in token_ids if 0 < token <= len(LETTERS))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return None


class MarkedCodec(TextCodec):
    """``inner``, with ``<image>`` for ``placeholder``."""

    def __init__(self, inner: TextCodec, placeholder: int) -> None:
        self._inner = inner
        self._placeholder = placeholder

    def encode(self, text: str) -> list[int]:
        begin = self._inner.encode("")
        first, *others = (self._inner.encode(part) for part in text.split(MARK))
        return [*first, *(token for part in others for token in (self._placeholder, *part[len(begin) :]))]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._inner.decode(token_ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return self._inner.render_chat(messages)


class ToyMedia(MultimodalProvider):
    """Places toy images; keeps the number of those that were encoded.

    Text counts on all axes alike. An image stands where it begins on the first axis and spreads over its rows and columns on
    the others, and the text after it goes on after its longer side; with ``plain``, every token has its index.
    """

    def __init__(
        self,
        stack: LayerStackProvider,
        placeholder: int,
        codec: TextCodec | None,
        plain: bool = False,
        chat: bool = True,
        bodies: tuple[MediaBody, ...] = (),
    ) -> None:
        """``bodies``: named, for capturing ahead; images are encoded without them."""
        self.stack = stack
        self.placeholder = placeholder
        self.codec = codec
        self.plain = plain
        self.chat = chat
        self.encoded = 0
        self._bodies = bodies

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        return self._bodies

    @property
    def reads_videos(self) -> bool:
        return False

    def prepare(
        self,
        text: str | Sequence[int],
        media: Sequence[bytes],
        max_tokens: int | None = None,
        runner: GraphRunner | None = None,
        videos: Sequence[VideoFrames] = (),
    ) -> PreparedPrompt:
        ids = self._ids(text)
        sizes = [self._size(data, f"image {number} of {len(media)}") for number, data in enumerate(media, 1)]
        if ids.count(self.placeholder) != len(media):
            raise InputError(f"{ids.count(self.placeholder)} placeholders, {len(media)} images; give as many")
        spans: list[tuple[int, int]] = []
        expanded: list[int] = []
        for token in ids:
            if token != self.placeholder:
                expanded.append(token)
                continue
            height, width = sizes[len(spans)]
            spans.append((len(expanded), len(expanded) + height * width))
            expanded += [token] * (height * width)
        if max_tokens is not None and len(expanded) > max_tokens:
            raise ContextLengthError(f"{len(expanded)} tokens, at most {max_tokens} are allowed; give smaller images")
        positions, offset = self._positions(len(expanded), spans, sizes)
        embeds = self._merged(expanded, spans, media)
        return PreparedPrompt(tuple(expanded), embeds, positions, offset, tuple(spans))

    def count_placeholders(self, text: str | Sequence[int]) -> int:
        return self._ids(text).count(self.placeholder)

    def render_chat(self, messages: Sequence[ChatMessage]) -> str | None:
        if not self.chat:
            return None
        parts: list[str] = []
        for message in messages:
            content = message["content"]
            given = [{"type": "text", "text": content}] if isinstance(content, str) else content
            parts += [MARK if part["type"] == "image" else part["text"] for part in given]
        return f"user: {' '.join(parts)} you: "

    def encode(self, data: bytes, count: int) -> Tensor:
        """Rows ``[count, H]`` of an image."""
        self.encoded += 1
        generator = torch.Generator().manual_seed(int.from_bytes(data, "big") % 2**31)
        scale = self.stack.embed(torch.arange(1, 16)).std()
        return scale * torch.randn(count, self.stack.spec.hidden_size, generator=generator)

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return list(text)
        assert self.codec is not None
        return self.codec.encode(text)

    def _size(self, data: bytes, name: str) -> tuple[int, int]:
        if not data.startswith(MAGIC) or len(data) != len(MAGIC) + 3:
            raise InputError(f"{name} is corrupt: {len(data)} bytes")
        height, width = data[len(MAGIC)], data[len(MAGIC) + 1]
        if not height * width:
            raise InputError(f"{name} has no pixels: it is {width} × {height}")
        return height, width

    def _merged(self, ids: Sequence[int], spans: Sequence[tuple[int, int]], media: Sequence[bytes]) -> Tensor:
        vocab = self.stack.spec.vocab_size
        embeds = self.stack.embed(torch.tensor([token if 0 <= token < vocab else 0 for token in ids])).clone()
        for (start, end), data in zip(spans, media, strict=True):
            embeds[start:end] = self.encode(data, end - start)
        return embeds

    def _positions(
        self, count: int, spans: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, int]:
        rows: list[tuple[int, int, int]] = []
        place, before = 0, 0
        for (start, end), (height, width) in zip(spans, sizes, strict=True):
            rows += [_alike(place + step) for step in range(start - len(rows))]
            place += start - before
            rows += [(place, place + cell // width, place + cell % width) for cell in range(end - start)]
            place += max(height, width)
            before = end
        rows += [_alike(place + step) for step in range(count - len(rows))]
        offset = place - (spans[-1][1] if spans else 0)
        positions = torch.tensor(rows, dtype=torch.int64).T
        if self.plain:
            positions, offset = torch.arange(count).expand(3, -1), 0
        return positions[0].clone() if self.stack.spec.positions.axes == 1 else positions.contiguous(), offset


def _alike(place: int) -> tuple[int, int, int]:
    return place, place, place


def seeing_target(
    axes: Literal[1, 3] = 1,
    placeholder: int = 46,
    plain: bool = False,
    chat: bool = True,
    seed: int = 5,
    sizes: ToySizes | None = None,
) -> Target:
    """A toy target that reads toy images; ids of ``placeholder`` from 48 on lie outside its vocabulary."""
    stack = ToyStack(sizes, seed, null_first=True, axes=axes)
    codec = MarkedCodec(Letters(), placeholder)
    return Target(stack, stack.weights, codec=codec, media=ToyMedia(stack, placeholder, codec, plain, chat))


def with_toy_images(target: Target, placeholder: int) -> Target:
    """``target``, of one axis, made to read toy images in place of the id ``placeholder``."""
    assert target.codec is not None
    codec = MarkedCodec(target.codec, placeholder)
    return evolve(target, codec=codec, media=ToyMedia(target.stack, placeholder, codec, plain=True))


def media_of(target: Target) -> MultimodalProvider:
    """The provider of a target that has one."""
    assert target.media is not None
    return target.media


def text_prompt(target: Target, ids: Sequence[int]) -> PreparedPrompt:
    """``ids`` as a prompt without images, prepared by hand."""
    stack = target.stack
    places = torch.arange(len(ids))
    positions = places if stack.spec.positions.axes == 1 else places.expand(3, -1)
    return PreparedPrompt(tuple(ids), stack.embed(torch.tensor(list(ids))), positions, 0, ())


def greedy_after(target: Target, prompt: PreparedPrompt, count: int) -> tuple[int, ...]:
    """The target's own greedy continuation: no cache, no batch, no pages, no draft, the whole sequence every time."""
    stack = target.stack
    tokens: list[int] = []
    attend = partial(causal_attention, stack.spec.layers)
    for _ in range(count):
        places = torch.arange(len(prompt.token_ids), len(prompt.token_ids) + len(tokens)) + prompt.position_offset
        later = places if stack.spec.positions.axes == 1 else places.expand(3, -1)
        embeds = torch.cat([prompt.embeds, stack.embed(torch.tensor(tokens, dtype=torch.int64))])
        hidden = stack.run_layers(embeds, StackInputs(torch.cat([prompt.positions, later], dim=-1), attend)).hidden
        tokens.append(int(stack.logits(hidden[-1:]).argmax()))
    return tuple(tokens)
