"""How attention is cut into tiles and splits: a function of the model and of a request's own sizes, never of its batch."""

from __future__ import annotations

import torch
from attrs import frozen

__all__ = ["CHUNK_KEYS", "MOST_SPLITS", "PROGRAMS", "Tiling", "most_splits", "num_splits", "tiling_for"]

CHUNK_KEYS = 128
"""Least number of prefix keys in a split: below it, merging splits costs more than reading their keys in turn."""

PROGRAMS = 128
"""Splits are made until a request alone has so many programs: about the multiprocessors of an H100 or H200."""

MOST_SPLITS = 32

_FEW_ROWS = 16
"""The fewest rows of a matrix product. Query rows of all heads that share a kv head are folded into these."""


@frozen
class Tiling:
    """Sizes of one program: folded query ``rows``, ``keys`` of the prefix and ``tail_keys`` of the tail at a time.

    ``one_tail``: the new tokens of a request fit one tile, which is loaded before all else, written and attended to.
    """

    rows: int
    keys: int
    tail_keys: int
    one_tail: bool
    warps: int
    stages: int


def tiling_for(num_rows: int, tail: int | None, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The tiling of a request of ``num_rows`` folded rows (queries × heads that share a kv head).

    ``tail``: slots under a tail mask; ``None`` in causal order. Sizes were chosen so that registers do not spill (sm_90, head
    dims 64 to 256). Float32 products use no tensor cores and hold their operands in registers: one small tile for all.
    """
    wide = head_dim > 128
    few = num_rows <= _FEW_ROWS
    one_tail = few and tail is None
    if dtype == torch.float32:
        keys, stages = (16, 2) if wide else (32, 3)
        return Tiling(_FEW_ROWS, keys, tail_keys=16, one_tail=one_tail, warps=8, stages=stages)
    keys = 32 if wide else 64
    if few:
        tail_keys = 16 if tail is None or tail <= 16 else 32
        # The page table stands between the pipeline's stages: with five, two tiles of keys are on their way.
        return Tiling(_FEW_ROWS, keys, tail_keys, one_tail, warps=4, stages=5)
    tail_keys = keys if tail is None else 32
    return Tiling(64, keys, tail_keys, one_tail=False, warps=8 if wide else 4, stages=2 if wide else 3)


def most_splits(num_kv_heads: int, num_rows: int, tiling: Tiling) -> int:
    """Into how many splits the prefix of a request of ``num_rows`` folded rows may be cut; the kernel computes the same."""
    blocks = -(-num_rows // tiling.rows)
    return min(max(PROGRAMS // (num_kv_heads * blocks), 1), MOST_SPLITS)


def num_splits(prefix: int, window: int | None, most: int, tiling: Tiling) -> int:
    """How many of ``most`` splits a prefix of up to ``prefix`` keys can need; monotone in ``prefix``."""
    # A window starts anywhere in a tile.
    keys = prefix if window is None else min(prefix, window + tiling.keys)
    return max(min(most, -(-keys // CHUNK_KEYS)), 1)
