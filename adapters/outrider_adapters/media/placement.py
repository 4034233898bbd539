"""`place`: where the tokens of each image stand in a prompt; `merge`: image rows among token embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.errors import InputError
from outrider.interfaces import LayerStackProvider

__all__ = ["Grid", "Placement", "Span", "merge", "place"]


@frozen
class Grid:
    """How many tokens an image takes, as they follow each other: ``height`` rows of ``width``.

    Where rows mean nothing to a model there is one.
    """

    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        """Tokens, one for each cell."""
        return self.height * self.width


@frozen
class Span:
    """One image in a prompt: its first token and its grid."""

    start: int
    grid: Grid

    @property
    def end(self) -> int:
        """One past its last token."""
        return self.start + self.grid.num_tokens


@frozen
class Placement:
    """A prompt in which each image has all its tokens. ``spans`` are in order and do not overlap."""

    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]


def place(token_ids: Sequence[int], placeholder: int, grids: Sequence[Grid]) -> Placement:
    """``token_ids`` with as many ``placeholder`` ids for each image as its grid has cells, in the order of the prompt.

    The prompt holds one placeholder for each image, or all of them already.

    Raises:
        InputError: their number is neither.
    """
    found = [index for index, token in enumerate(token_ids) if token == placeholder]
    total = sum(grid.num_tokens for grid in grids)
    if len(found) == len(grids):
        return _expanded(token_ids, placeholder, grids)
    if len(found) != total or not grids:
        already = f", or {total} where they are repeated for every token of an image" if grids else ""
        images = "1 image was" if len(grids) == 1 else f"{len(grids)} images were"
        raise InputError(
            f"the prompt has {len(found)} image placeholder{'' if len(found) == 1 else 's'} (token id {placeholder}) and "
            f"{images} given; give one placeholder for each image{already}"
        )
    spans: list[Span] = []
    taken = 0
    for number, grid in enumerate(grids, 1):
        first, last = found[taken], found[taken + grid.num_tokens - 1]
        if last - first + 1 != grid.num_tokens:
            raise InputError(
                f"the {grid.num_tokens} placeholders (token id {placeholder}) of image {number} of {len(grids)} are "
                f"interrupted: they begin at position {first} and end at {last}; repeat the placeholder without a gap, or "
                "give one for each image"
            )
        spans.append(Span(first, grid))
        taken += grid.num_tokens
    return Placement(tuple(token_ids), tuple(spans))


def _expanded(token_ids: Sequence[int], placeholder: int, grids: Sequence[Grid]) -> Placement:
    ids: list[int] = []
    spans: list[Span] = []
    for token in token_ids:
        if token != placeholder:
            ids.append(token)
            continue
        spans.append(Span(len(ids), grids[len(spans)]))
        ids += [placeholder] * spans[-1].grid.num_tokens
    return Placement(tuple(ids), tuple(spans))


def merge(stack: LayerStackProvider, placement: Placement, features: Tensor | None) -> Tensor:
    """Fresh embeddings ``[P, H]``: tokens as ``stack`` embeds them, and rows of ``features`` at the images in order.

    The ids of images are never looked up, since they may lie outside the embedding.
    """
    device = stack.spec.device
    ids = list(placement.token_ids)
    for span in placement.spans:
        ids[span.start : span.end] = [0] * span.grid.num_tokens
    embeds = stack.embed(torch.tensor(ids, dtype=torch.int64, device=device)).clone()
    taken = 0
    for span in placement.spans:
        assert features is not None
        embeds[span.start : span.end] = features.narrow(0, taken, span.grid.num_tokens)
        taken += span.grid.num_tokens
    return embeds
