"""`place`: where the tokens of each medium stand in a prompt; `merge`: their rows among token embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import torch
from attrs import frozen
from torch import Tensor

from outrider.errors import InputError, Problems
from outrider.interfaces import LayerStackProvider
from outrider.types.counts import counted

__all__ = ["Grid", "MediaOfAKind", "Medium", "Placement", "Span", "merge", "place", "place_media"]


class Medium(Enum):
    """What stands in a prompt; the value is its name in messages."""

    IMAGE = "image"
    VIDEO = "video"


_A = {Medium.IMAGE: "an image", Medium.VIDEO: "a video"}


@frozen
class Grid:
    """How many tokens a medium takes, as they follow each other: ``frames`` of ``height`` rows of ``width``.

    Where rows mean nothing to a model there is one. ``seconds``: from one of ``frames``, which may be made of several frames
    of a file, to the next.
    """

    height: int
    width: int
    frames: int = 1
    seconds: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens, one for each cell."""
        return self.frames * self.height * self.width


@frozen
class Span:
    """One medium in a prompt: its first token and its grid."""

    start: int
    grid: Grid
    medium: Medium = Medium.IMAGE

    @property
    def end(self) -> int:
        """One past its last token."""
        return self.start + self.grid.num_tokens


@frozen
class Placement:
    """A prompt in which each medium has all its tokens. ``spans`` are in order and do not overlap."""

    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]

    def spans_of(self, medium: Medium) -> tuple[Span, ...]:
        """Those of one kind, in order."""
        return tuple(span for span in self.spans if span.medium is medium)


@frozen
class MediaOfAKind:
    """Media of a kind, in order: the id that stands for each, and the tokens each takes."""

    medium: Medium
    placeholder: int
    grids: tuple[Grid, ...]


def place(token_ids: Sequence[int], placeholder: int, grids: Sequence[Grid]) -> Placement:
    """``token_ids`` with as many ``placeholder`` ids for each image as its grid has cells, in the order of the prompt.

    The prompt holds one placeholder for each image, or all of them already.

    Raises:
        InputError: their number is neither.
    """
    return place_media(token_ids, [MediaOfAKind(Medium.IMAGE, placeholder, tuple(grids))])


def place_media(token_ids: Sequence[int], kinds: Sequence[MediaOfAKind]) -> Placement:
    """`place` for media of several kinds, each of which takes placeholders of its own.

    Raises:
        InputError: a kind has neither one placeholder for each of its media nor all of them; all kinds at once.
    """
    due: dict[int, tuple[Medium, Iterator[tuple[int, Grid]]]] = {}
    faults: list[str] = []
    for kind in kinds:
        try:
            due[kind.placeholder] = kind.medium, zip(_steps(token_ids, kind), kind.grids, strict=True)
        except InputError as error:
            faults.append(str(error))
    if len(faults) == 1:
        raise InputError(faults[0])
    with Problems("the media do not fit the prompt", InputError) as problems:
        for fault in faults:
            problems.add(fault)
    ids: list[int] = []
    spans: list[Span] = []
    index = 0
    while index < len(token_ids):
        token = token_ids[index]
        if token not in due:
            ids.append(token)
            index += 1
            continue
        medium, following = due[token]
        step, grid = next(following)
        spans.append(Span(len(ids), grid, medium))
        ids += [token] * grid.num_tokens
        index += step
    return Placement(tuple(ids), tuple(spans))


def _steps(token_ids: Sequence[int], kind: MediaOfAKind) -> list[int]:
    """How many placeholders each medium of ``kind`` has in the prompt: one each, or one for each of its tokens."""
    name, grids, placeholder = kind.medium.value, kind.grids, kind.placeholder
    found = [index for index, token in enumerate(token_ids) if token == placeholder]
    sizes = [grid.num_tokens for grid in grids]
    if len(found) == len(grids):
        return [1] * len(grids)
    if len(found) != sum(sizes) or not grids:
        already = f", or {sum(sizes)} where they are repeated for every token of {_A[kind.medium]}" if grids else ""
        raise InputError(
            f"the prompt has {counted(len(found), f'{name} placeholder')} (token id {placeholder}) and "
            f"{counted(len(grids), name)} {'was' if len(grids) == 1 else 'were'} given; give one placeholder for each {name}"
            f"{already}"
        )
    taken = 0
    for number, size in enumerate(sizes, 1):
        first, last = found[taken], found[taken + size - 1]
        if last - first + 1 != size:
            raise InputError(
                f"the {size} placeholders (token id {placeholder}) of {name} {number} of {len(grids)} are interrupted: they "
                f"begin at position {first} and end at {last}; repeat the placeholder without a gap, or give one for each "
                f"{name}"
            )
        taken += size
    return sizes


def merge(stack: LayerStackProvider, placement: Placement, features: Tensor | None) -> Tensor:
    """Fresh embeddings ``[P, H]``: tokens as ``stack`` embeds them, and rows of ``features`` at the media in order.

    The ids of media are never looked up, since they may lie outside the embedding.
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
