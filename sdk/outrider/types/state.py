"""The state of the running requests, resident on the device."""

from __future__ import annotations

from attrs import evolve, frozen
from torch import Tensor

from outrider.types.sampling import SamplingState

__all__ = ["DecodeState", "VerifiedRows"]


@frozen(eq=False)
class DecodeState:
    """B running requests, one row each; every tensor lives on the device and is changed in place.

    The sequence of row b is ``tokens[b, : lengths[b] + 1]``: ``lengths[b]`` committed tokens, whose KV is in the cache,
    and the root at position ``lengths[b]``, whose KV is not there yet.

    - ``lengths``: ``[B]`` int64. ``roots``: ``[B]`` int64.
    - ``tokens``: ``[B, C]`` int64, the history, prompt included. ``prompt_lens``: ``[B]`` int64.
    - ``max_totals``: ``[B]`` int64, prompt + generated tokens at which the request ends (token or context limit).
    - ``stop_ids``: ``[B, E]`` int64, end-of-sequence ids, padded with -1.
    - ``finished``: ``[B]`` bool; a finished row is computed along but emits nothing.
    - ``draft_caps``: ``[B]`` int64, the most drafted tokens the request wants in a row (depth of its tree).
    - ``page_table``: ``[B, P]`` int64. ``position_offsets``: ``[B]`` int64, added to sequence indices to give rope
      positions after the prompt (multi-axis rope; else 0).
    - ``context_length``: the most tokens a sequence may have (prompt + generated), the same for every row.
    - ``max_length``: host upper bound of ``lengths + 1``.
    """

    lengths: Tensor
    roots: Tensor
    tokens: Tensor
    prompt_lens: Tensor
    max_totals: Tensor
    stop_ids: Tensor
    finished: Tensor
    draft_caps: Tensor
    page_table: Tensor
    position_offsets: Tensor
    sampling: SamplingState
    context_length: int
    max_length: int

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return self.lengths.shape[0]

    def bounded(self, max_length: int) -> DecodeState:
        """The same rows (same storage) under another host bound."""
        return evolve(self, max_length=max_length)


@frozen(eq=False)
class VerifiedRows:
    """Pairs (token i with the target's feature there, token i + 1) that the target has verified, for a drafter to learn from.

    The rows of request b are consecutive. Only rows that precede ``last_rows[b]`` or equal it are real; later rows of
    the request are padding whose ``slots`` are never read.

    - ``first_row``: where in the batch the B requests stand (rows first_row .. first_row + B - 1).
    - ``tokens`` and ``next_tokens``: ``[T]`` int64, token i and token i + 1 of each pair.
    - ``next_media``: ``[T]`` bool, where the next position belongs to an image or the like, and ``next_embeds``: ``[T, H]``,
      the target's merged embedding there (other rows hold anything finite); both ``None`` without media.
    - ``foreign_ids``: whether tokens may hold ids outside the vocabulary: placeholders of media, which have no embedding.
    - ``features``: ``[T, DraftSpec.feature_width]``, ``None`` for a drafter without taps.
    - ``indices``: ``[T]`` int64, sequence index of each pair (position of its feature).
    - ``positions``: ``[T]`` or ``[3, T]`` int64 rope positions of the pairs.
    - ``slots``: ``[T]`` int64 cache slots. ``last_rows``: ``[B]`` int64 flat row index of each request's newest pair.
    - ``query_lens``, ``prefix_lens``, ``host_prefix_lens``, ``page_table``, ``max_length``: as in `AttnBatch`.
    - ``prefill_lengths``: ``[T]`` int64 prompt length of each row, in prefill only.
    """

    first_row: int
    tokens: Tensor
    next_tokens: Tensor
    features: Tensor | None
    indices: Tensor
    positions: Tensor
    slots: Tensor
    last_rows: Tensor
    query_lens: tuple[int, ...]
    prefix_lens: Tensor
    page_table: Tensor
    max_length: int
    host_prefix_lens: tuple[int, ...] | None = None
    prefill_lengths: Tensor | None = None
    next_embeds: Tensor | None = None
    next_media: Tensor | None = None
    foreign_ids: bool = False
