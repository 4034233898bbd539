"""Which tokens of prompts one pass takes, and what its rows are fed where images stand among text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import PreparedPrompt
from outrider.loop.core import DecodeCore

__all__ = [
    "NextMedia",
    "PrefillPrompt",
    "Span",
    "embeds_of",
    "has_foreign_ids",
    "next_media_of",
    "positions_of",
    "spans_of",
]


@frozen(eq=False)
class PrefillPrompt:
    """One prompt to prefill. ``embeds [P, H]`` and ``positions [P]`` or ``[3, P]`` replace token embeddings and plain
    positions where media are placed; ``None`` for text. ``media``: as in `PreparedPrompt`.
    """

    token_ids: tuple[int, ...]
    embeds: Tensor | None = None
    positions: Tensor | None = None
    media: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, token_ids: tuple[int, ...], prepared: PreparedPrompt | None) -> PrefillPrompt:
        """The prompt of a request, with its media where it has any."""
        if prepared is None:
            return cls(token_ids)
        return cls(token_ids, prepared.embeds, prepared.positions, prepared.media)


@frozen
class Span:
    """Tokens start..end-1 of prompt number ``index``."""

    index: int
    start: int
    end: int
    total: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.end - self.start

    @property
    def completes(self) -> bool:
        """Whether the prompt ends with it."""
        return self.end == self.total


@frozen(eq=False)
class NextMedia:
    """What stands at the position after each of T rows: ``embeds [T, H]``, meant where ``there [T]`` bool."""

    embeds: Tensor
    there: Tensor


def spans_of(prompts: Sequence[PrefillPrompt], num_done: int, budget: int) -> list[Span]:
    """What one pass of at most ``budget`` tokens (1 or more) takes, in order; ``num_done`` tokens of the first prompt were run.

    All but the last span end their prompts. That one may be cut anywhere, images included.
    """
    spans: list[Span] = []
    start = num_done
    for index, prompt in enumerate(prompts):
        total = len(prompt.token_ids)
        end = min(total, start + budget)
        spans.append(Span(index, start, end, total))
        budget -= end - start
        if budget == 0:
            break
        start = 0
    return spans


def embeds_of(core: DecodeCore, prompts: Sequence[PrefillPrompt], spans: Sequence[Span], token_ids: Tensor) -> Tensor:
    """``[T, H]`` embeddings of a chunk's ``token_ids [T]``: merged ones where a prompt brings them."""
    if all(prompts[span.index].embeds is None for span in spans):
        return core.target.stack.embed(token_ids)
    parts: list[Tensor] = []
    offset = 0
    for span in spans:
        placed = prompts[span.index].embeds
        ids = token_ids[offset : offset + span.size]
        parts.append(core.target.stack.embed(ids) if placed is None else placed[span.start : span.end])
        offset += span.size
    return torch.cat(parts)


def positions_of(core: DecodeCore, prompts: Sequence[PrefillPrompt], spans: Sequence[Span], indices: Tensor) -> Tensor:
    """``[T]`` or ``[3, T]`` rope positions of a chunk's ``indices [T]``: given ones where a prompt brings them.

    ``indices`` itself where none does: prompts lie within the context.
    """
    plain = core.on_axes(indices)
    if all(prompts[span.index].positions is None for span in spans):
        return plain
    parts: list[Tensor] = []
    offset = 0
    for span in spans:
        placed = prompts[span.index].positions
        own = plain[..., offset : offset + span.size] if placed is None else placed[..., span.start : span.end]
        parts.append(own)
        offset += span.size
    return torch.cat(parts, dim=-1)


def next_media_of(core: DecodeCore, prompts: Sequence[PrefillPrompt], spans: Sequence[Span]) -> NextMedia | None:
    """The merged embeddings that follow a chunk's rows, across its borders too; ``None`` where no media follow.

    What follows a prompt's last row is the first generated token, which is text.
    """
    if not any(prompts[span.index].media for span in spans):
        return None
    marks = [_follows(prompts[span.index], place) for span in spans for place in range(span.start + 1, span.end + 1)]
    if not any(marks):
        return None
    spec = core.spec
    parts: list[Tensor] = []
    for span in spans:
        placed = prompts[span.index].embeds
        known = None if placed is None else placed[span.start + 1 : span.end + 1]
        missing = span.size - (0 if known is None else known.shape[0])
        parts += [] if known is None else [known]
        parts += [torch.zeros(missing, spec.hidden_size, dtype=spec.dtype, device=spec.device)] if missing else []
    return NextMedia(torch.cat(parts), torch.tensor(marks).to(spec.device, non_blocking=True))


def has_foreign_ids(prompts: Sequence[PrefillPrompt], spans: Sequence[Span], vocab_size: int) -> bool:
    """Whether placeholders of media in or right after the spans lie outside the vocabulary; known on the host."""
    return any(
        not 0 <= token < vocab_size
        for span in spans
        if prompts[span.index].media
        for token in prompts[span.index].token_ids[span.start : span.end + 1]
    )


def _follows(prompt: PrefillPrompt, place: int) -> bool:
    return any(start <= place < end for start, end in prompt.media)
