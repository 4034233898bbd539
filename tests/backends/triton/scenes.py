"""Batches of any size over a paged cache, with attention written out in float64: the reference at real sizes.

A scene is one layer. Slots that were never written hold NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider._torch import int_rows
from outrider.interfaces import TRASH_PAGE, AttnBackend
from outrider.kv import PagedKVCache, slots_of
from outrider.types import AttentionSpec, AttnBatch
from outrider_backends.triton import create

CPU = torch.device("cpu")

needs_interpreter = pytest.mark.skipif(
    "cpu" not in create().capabilities.devices, reason="needs Triton's interpreter; on a card, test_gpu.py runs instead"
)


@frozen(eq=False)
class Scene:
    """One layer's q, k, v ``[T, ·, D]`` and a batch over a cache."""

    spec: AttentionSpec
    kv: PagedKVCache
    batch: AttnBatch
    q: Tensor
    k: Tensor
    v: Tensor


def make_scene(
    spec: AttentionSpec,
    prefixes: Sequence[int],
    queries: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    page_size: int = 16,
    seed: int = 0,
    tree: bool = False,
    room: int = 0,
) -> Scene:
    """Requests of ``queries`` new tokens on ``prefixes`` cached ones, on shuffled pages with ``room`` to grow."""
    rng = torch.Generator().manual_seed(seed)
    counts = [-(-(p + n + room) // page_size) for p, n in zip(prefixes, queries, strict=True)]
    order = int_rows(torch.randperm(sum(counts), generator=rng)[None] + 2)[0]
    table = torch.zeros(len(counts), max(counts), dtype=torch.int64)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    kv = PagedKVCache([spec], sum(counts) + 2, page_size, dtype, device)
    kv.keys(0)[page_size:] = math.nan
    kv.values(0)[page_size:] = math.nan
    slots: list[Tensor] = []
    for row, (prefix, count) in enumerate(zip(prefixes, queries, strict=True)):
        where = slots_of(table[row : row + 1], torch.arange(prefix + count)[None], page_size)[0]
        cached = where[:prefix].to(device)
        for storage in (kv.keys(0), kv.values(0)):
            storage[cached] = torch.randn(prefix, *storage.shape[1:], generator=rng).to(device, dtype)
        slots.append(where[prefix:])
    # Slices of one fused projection, as models give them: not contiguous.
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    fused = torch.randn(sum(queries), heads + 2 * kv_heads, spec.head_dim, generator=rng).to(device, dtype)
    q, k, v = fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :]
    masks = [_tree(queries[0], rng) for _ in queries] if tree else []
    mask = torch.stack(masks).to(device) if tree else None
    batch = AttnBatch(
        query_lens=tuple(queries),
        prefix_lens=torch.tensor(prefixes, device=device),
        page_table=table.to(device),
        slots=torch.cat(slots).to(device),
        max_length=max(p + n for p, n in zip(prefixes, queries, strict=True)) + room,
        tail_mask=mask,
        query_depths=None if mask is None else mask.sum(-1) - 1,
        tail_depths=None if mask is None else mask.sum(-1) - 1,
    )
    return Scene(spec, kv, batch, q, k, v)


def run(backend: AttnBackend, scene: Scene) -> Tensor:
    """What the backend gives, ``[T, num_heads, D]``."""
    return backend.plan(scene.batch, [scene.spec], scene.kv).attend(0, scene.q, scene.k, scene.v)


def rows_of_request(scene: Scene, row: int) -> slice:
    """Where the tokens of request ``row`` are."""
    first = sum(scene.batch.query_lens[:row])
    return slice(first, first + scene.batch.query_lens[row])


def pick(scene: Scene, rows: Sequence[int], max_length: int | None = None, width: int | None = None) -> Scene:
    """The scene of these requests alone, in this order; with another bound and a wider page table if asked."""
    batch, index = scene.batch, torch.tensor(rows, device=scene.q.device)
    tokens = torch.cat([torch.arange(scene.q.shape[0])[rows_of_request(scene, row)] for row in rows]).to(index.device)
    table = batch.page_table[index]
    if width is not None:
        table = torch.nn.functional.pad(table, (0, width - table.shape[1]))
    picked = AttnBatch(
        query_lens=tuple(batch.query_lens[row] for row in rows),
        prefix_lens=batch.prefix_lens[index],
        page_table=table,
        slots=batch.slots[tokens],
        max_length=batch.max_length if max_length is None else max_length,
        tail_mask=None if batch.tail_mask is None else batch.tail_mask[index],
        query_depths=None if batch.query_depths is None else batch.query_depths[index],
        tail_depths=None if batch.tail_depths is None else batch.tail_depths[index],
    )
    return evolve(scene, batch=picked, q=scene.q[tokens], k=scene.k[tokens], v=scene.v[tokens])


def with_padding(scene: Scene) -> Scene:
    """The scene with one more request at its front, all of whose rows are padding full of NaN; queries must be uniform."""
    batch = scene.batch
    count = batch.query_lens[0]

    def lead(tensor: Tensor, size: int, value: float) -> Tensor:
        return torch.cat([tensor.new_full((size, *tensor.shape[1:]), value), tensor])

    padded = AttnBatch(
        query_lens=(count, *batch.query_lens),
        prefix_lens=lead(batch.prefix_lens, 1, 0),
        page_table=lead(batch.page_table, 1, 0),
        slots=lead(batch.slots, count, TRASH_PAGE * scene.kv.page_size),
        max_length=batch.max_length,
        tail_mask=None if batch.tail_mask is None else lead(batch.tail_mask, 1, True),
        query_depths=None if batch.query_depths is None else lead(batch.query_depths, 1, 0),
        tail_depths=None if batch.tail_depths is None else lead(batch.tail_depths, 1, 0),
    )
    q, k, v = (lead(each, count, math.nan) for each in (scene.q, scene.k, scene.v))
    return evolve(scene, batch=padded, q=q, k=k, v=v)


def expected(scene: Scene) -> Tensor:
    """Attention written out in float64, ``[T, num_heads, D]``; the cache need not hold the new keys."""
    spec, batch = scene.spec, scene.batch
    groups = spec.num_heads // spec.num_kv_heads
    outputs: list[Tensor] = []
    prefixes = int_rows(batch.prefix_lens[None])[0]
    for row, (prefix, count) in enumerate(zip(prefixes, batch.query_lens, strict=True)):
        tokens = rows_of_request(scene, row)
        device = scene.q.device
        cached = slots_of(
            batch.page_table[row : row + 1], torch.arange(prefix, device=device)[None], scene.kv.page_size
        )
        keys = torch.cat([scene.kv.keys(0)[cached[0]], scene.k[tokens]]).double().repeat_interleave(groups, dim=1)
        values = torch.cat([scene.kv.values(0)[cached[0]], scene.v[tokens]]).double().repeat_interleave(groups, dim=1)
        depth = torch.arange(count, device=device)
        tail = depth[None, :] <= depth[:, None]
        if batch.tail_mask is not None and batch.tail_depths is not None:
            tail, depth = batch.tail_mask[row], batch.tail_depths[row]
        seen = torch.cat([torch.ones(count, prefix, dtype=torch.bool, device=device), tail], dim=1)
        if spec.window is not None:
            position = torch.cat([torch.arange(-prefix, 0, device=device), depth])
            seen &= position[None, :] > depth[:, None] - spec.window
        scores = torch.einsum("qhd,khd->hqk", scene.q[tokens].double(), keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        scores = scores.masked_fill(~seen, -math.inf)
        if spec.sinks is not None:
            scores = torch.cat([scores, spec.sinks.double()[:, None, None].expand(-1, count, 1)], dim=2)
        weights = torch.softmax(scores, dim=-1)[:, :, : prefix + count]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def _tree(size: int, rng: torch.Generator) -> Tensor:
    """A random ancestor mask ``[size, size]``, self included."""
    mask = torch.eye(size, dtype=torch.bool)
    for node in range(1, size):
        mask[node] |= mask[int(torch.randint(0, node, (), generator=rng))]
    return mask
