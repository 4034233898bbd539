"""What is known of a layer's kernel launches before its q, k and v are: sizes, tiles, and which blocks there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.types import AttentionSpec, AttnBatch
from outrider_backends.triton.tiling import Tiling, most_splits, num_splits, tiling_for

__all__ = ["Launch", "launches_for"]

_NO_WINDOW = 1 << 30
"""Windows this long hide nothing, and positions plus windows must not leave 32 bits."""


@frozen(eq=False)
class Launch:
    """One launch: its grid, the blocks of a ragged batch, floats of scratch that splits need, and the kernel's constants.

    ``constants`` are groups, head dim and its padding, page size, window (0: none), the sizes of tiles and whether
    one holds the tail, in the kernel's order.
    """

    grid: tuple[int, int, int]
    items: Tensor | None
    scratch: int
    constants: tuple[int, ...]
    tiling: Tiling


def launches_for(
    spec: AttentionSpec, batch: AttnBatch, page_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Launch, ...]:
    """The launches that serve ``batch`` on layers like ``spec``: one, or two where requests of few and of many rows meet.

    A ragged batch's blocks are copied to the device without waiting for it. Batches without queries need no launch.
    """
    groups = spec.num_heads // spec.num_kv_heads
    queries = batch.uniform_queries
    if queries is not None:
        if queries == 0:
            return ()
        tail = None if batch.tail_mask is None else batch.tail_mask.shape[2]
        tiling = tiling_for(queries * groups, tail, spec.head_dim, dtype)
        blocks = -(-queries * groups // tiling.rows)
        prefixes = batch.host_prefix_lens
        longest = _bound(batch, page_size) if prefixes is None else max(prefixes)
        splits = _splits(spec, queries, longest, tiling)
        return (_launch(spec, page_size, tiling, batch.num_requests * blocks, splits, None),)

    rows_of: dict[Tiling, list[int]] = {}
    splits_of: dict[Tiling, int] = {}
    first = 0
    for request, count in enumerate(batch.query_lens):
        if count > 0:
            tiling = tiling_for(count * groups, None, spec.head_dim, dtype)
            items = rows_of.setdefault(tiling, [])
            # Later blocks see more keys, so they start first.
            for block in reversed(range(-(-count * groups // tiling.rows))):
                items += (request, first, count, block)
            prefixes = batch.host_prefix_lens
            longest = _bound(batch, page_size) if prefixes is None else prefixes[request]
            splits_of[tiling] = max(splits_of.get(tiling, 1), _splits(spec, count, longest, tiling))
        first += count
    return tuple(
        _launch(spec, page_size, tiling, len(items) // 4, splits_of[tiling], _upload(items, device))
        for tiling, items in rows_of.items()
    )


def _bound(batch: AttnBatch, page_size: int) -> int:
    return min(batch.max_length, batch.page_table.shape[1] * page_size)


def _window(spec: AttentionSpec) -> int | None:
    return spec.window if spec.window is not None and spec.window < _NO_WINDOW else None


def _splits(spec: AttentionSpec, queries: int, longest: int, tiling: Tiling) -> int:
    rows = queries * (spec.num_heads // spec.num_kv_heads)
    return num_splits(longest, _window(spec), most_splits(spec.num_kv_heads, rows, tiling), tiling)


def _launch(
    spec: AttentionSpec,
    page_size: int,
    tiling: Tiling,
    num_items: int,
    splits: int,
    items: Tensor | None,
) -> Launch:
    groups, head_dim = spec.num_heads // spec.num_kv_heads, spec.head_dim
    window = _window(spec)
    return Launch(
        grid=(num_items, spec.num_kv_heads, splits),
        items=items,
        scratch=num_items * spec.num_kv_heads * splits * tiling.rows * (head_dim + 2) if splits > 1 else 0,
        constants=(
            groups,
            head_dim,
            _power(max(head_dim, 16)),
            page_size,
            window or 0,
            tiling.rows,
            tiling.keys,
            tiling.tail_keys,
            tiling.tail_keys if tiling.one_tail else _power(-(-tiling.rows // groups)),
            tiling.one_tail,
        ),
        tiling=tiling,
    )


def _power(value: int) -> int:
    """The least power of two that is no less."""
    return 1 << (value - 1).bit_length()


def _upload(items: Sequence[int], device: torch.device) -> Tensor:
    table = torch.tensor(items, dtype=torch.int32, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
