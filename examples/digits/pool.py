"""Dialogues as tensors: tokenized once, drawn from at random, with images that are drawn anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from attrs import frozen
from tokenizers import Tokenizer
from torch import Tensor

from examples.digits.dialogue import IMAGE, MAX_DIGITS, Dialogue, random_dialogue
from examples.digits.model import PAD_ID
from examples.digits.render import Drawing, Look, draw, normalized, resized
from examples.digits.scans import Scans
from examples.digits.settings import IMAGE_TOKENS, SIDE

__all__ = ["Batch", "Pool", "make_pool", "random_pool"]

_LONGEST = (128, 180, 208)
"""Tokens of the longest dialogue that is kept, by number of images."""


@frozen(eq=False)
class Batch:
    """``ids_BT [B, T]`` int64, ``answered_BT`` bool, and the images of all rows, in order: ``[B * images, ...]``."""

    ids: Tensor
    answered: Tensor
    digits: Tensor
    drawing: Drawing | None

    @property
    def pixels(self) -> Tensor | None:
        """Pixels as the processor hands them to the model."""
        return None if self.drawing is None else normalized(self.drawing.pixels)


@frozen(eq=False)
class Pool:
    """Dialogues about equally many images each, padded at their end to one length."""

    ids: Tensor
    answered: Tensor
    digits: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def sample(self, size: int, scans: Scans, look: Look, generator: torch.Generator, side: int = SIDE) -> Batch:
        """``size`` random dialogues, their images drawn at ``side`` and brought to the model's size."""
        device = self.ids.device
        return self.take(
            torch.randint(len(self), (size,), generator=generator, device=device), scans, look, generator, side
        )

    def take(self, rows: Tensor, scans: Scans, look: Look, generator: torch.Generator, side: int = SIDE) -> Batch:
        """The dialogues ``rows``, with images of random scans."""
        digits_NK = self.digits[rows].flatten(0, 1)
        drawing: Drawing | None = None
        if len(digits_NK):
            counts_N = self.counts[rows].flatten()
            drawing = draw(scans.draw(digits_NK, generator), counts_N, look, generator, side)
            if side != SIDE:
                drawing = Drawing(resized(drawing.pixels, SIDE), drawing.layout)
        return Batch(self.ids[rows], self.answered[rows], digits_NK, drawing)


def random_pool(tokenizer: Tokenizer, num_images: int, size: int, rng: Random, device: torch.device) -> Pool:
    """``size`` random dialogues about ``num_images`` images each."""
    return make_pool(tokenizer, [random_dialogue(rng, num_images) for _ in range(size)], device)


def make_pool(tokenizer: Tokenizer, dialogues: Sequence[Dialogue], device: torch.device) -> Pool:
    """``dialogues``, all about equally many images, on ``device``; those that are too long are left out."""
    num_images = len(dialogues[0].images)
    texts = [
        segment.text.replace(IMAGE, IMAGE * IMAGE_TOKENS) for dialogue in dialogues for segment in dialogue.segments
    ]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    ids_rows: list[list[int]] = []
    answered_rows: list[list[bool]] = []
    kept: list[Dialogue] = []
    for dialogue in dialogues:
        ids: list[int] = []
        answered: list[bool] = []
        for segment in dialogue.segments:
            part = next(encoded).ids
            ids += part
            answered += [segment.answered] * len(part)
        if len(ids) <= _LONGEST[num_images]:
            kept.append(dialogue)
            ids_rows.append(ids)
            answered_rows.append(answered)
    longest = max(len(ids) for ids in ids_rows)
    digits = [[[*image, *[0] * (MAX_DIGITS - len(image))] for image in dialogue.images] for dialogue in kept]
    counts = [[len(image) for image in dialogue.images] for dialogue in kept]
    return Pool(
        torch.tensor([ids + [PAD_ID] * (longest - len(ids)) for ids in ids_rows], device=device),
        torch.tensor([row + [False] * (longest - len(row)) for row in answered_rows], device=device),
        torch.tensor(digits, dtype=torch.int64, device=device).view(len(kept), num_images, MAX_DIGITS),
        torch.tensor(counts, dtype=torch.int64, device=device).view(len(kept), num_images),
    )
