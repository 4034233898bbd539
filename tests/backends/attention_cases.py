"""Worlds that any attention backend must get right.

A world is a poisoned cache (NaN wherever nothing was verified), shuffled partial pages, and a batch whose padding rows
hold NaN. The reference is plain float64 softmax over a list of visible keys, one query at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from outrider._torch import int_rows
from outrider.interfaces import TRASH_PAGE
from outrider.kv import PagedKVCache, slots_of
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities


class Kind(Enum):
    """What part of the loop a batch stands for."""

    RAGGED_PREFILL = "ragged prefill"
    EQUAL_PREFILL = "equal prefill"
    CHUNKED_PREFILL = "chunked prefill"
    PADDED_PREFILL = "padded prefill"
    DECODE = "decode"
    EXTEND = "padded extend"
    CHAIN = "chain verification"
    TREE = "tree verification"
    DRAFT_STEP = "draft-tree step"


@frozen(eq=False)
class Tail:
    """The slots after one request's prefix: who sees which, how deep each is, and which this pass writes."""

    mask: Tensor
    depths: Tensor
    columns: list[int]


@frozen(eq=False)
class World:
    """A batch over a cache, the new q, k, v of every layer, and what real rows must come out as."""

    layers: tuple[AttentionSpec, ...]
    kv: PagedKVCache
    batch: AttnBatch
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    real: Tensor
    expected: list[Tensor] = field(repr=False)


def layers_for(capabilities: AttnCapabilities, device: torch.device) -> tuple[AttentionSpec, ...]:
    """One layer of each sort that the backend says it serves, of several head counts."""
    dim = 16 if capabilities.head_dims is None else min(capabilities.head_dims)
    scale = dim**-0.5
    layers = [AttentionSpec(4, 2, dim, scale), AttentionSpec(4, 2, dim, 0.3), AttentionSpec(2, 2, dim, scale)]
    layers.append(AttentionSpec(4, 1, dim, scale))
    if capabilities.windows:
        layers += [AttentionSpec(4, 2, dim, scale, window=window) for window in (1, 4, 11, 10_000)]
    if capabilities.soft_cap:
        layers.append(AttentionSpec(4, 2, dim, 1.0, soft_cap=2.0))
    if capabilities.sinks:
        sinks = torch.tensor([-1.0, 0.5, 2.0, 0.0], device=device)
        layers.append(AttentionSpec(4, 2, dim, scale, sinks=sinks))
        layers.append(AttentionSpec(4, 2, dim, scale, sinks=sinks.flip(0)))
    if capabilities.sinks and capabilities.soft_cap and capabilities.windows:
        sinks = torch.tensor([1.0, 0.0, -2.0, 0.7], device=device)
        layers.append(AttentionSpec(4, 2, dim, 1.0, window=5, soft_cap=3.0, sinks=sinks))
    return tuple(layers)


def build(
    kind: Kind,
    layers: Sequence[AttentionSpec],
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    prefix_lens: Sequence[int] | None = None,
) -> World:
    """A random world; equal ``kind``, ``layers`` and sizes give equal shapes whatever the seed."""
    rng = torch.Generator().manual_seed(seed)
    query_lens, real_lens, prefixes, known = _lengths(kind)
    prefixes = tuple(prefix_lens) if prefix_lens is not None else prefixes
    tails = [_tail(kind, count, rng) for count in query_lens]
    needed = [prefix + max(tail.columns) + 1 for prefix, tail in zip(prefixes, tails, strict=True)]
    needed = [max(n, p + t.mask.shape[1]) for n, p, t in zip(needed, prefixes, tails, strict=True)]
    max_length = max(needed) + 3
    table, num_pages = _pages(needed, max_length, page_size, rng)
    kv = PagedKVCache(layers, num_pages, page_size, dtype, device)
    for layer in range(len(layers)):
        kv.keys(layer)[page_size:] = math.nan
        kv.values(layer)[page_size:] = math.nan

    real = torch.cat([torch.arange(n) < r for n, r in zip(query_lens, real_lens, strict=True)])
    slots = torch.full((len(real),), TRASH_PAGE * page_size)
    worlds_q: list[Tensor] = []
    worlds_k: list[Tensor] = []
    worlds_v: list[Tensor] = []
    expected: list[Tensor] = []
    for layer, spec in enumerate(layers):
        # Slices of one fused projection, as models give them: not contiguous.
        width = spec.num_heads + 2 * spec.num_kv_heads
        fused = torch.randn(len(real), width, spec.head_dim, generator=rng).to(dtype)
        fused[~real] = math.nan
        out = torch.zeros(len(real), spec.num_heads, spec.head_dim, dtype=torch.float64)
        first = 0
        for row, (count, prefix, tail) in enumerate(zip(query_lens, prefixes, tails, strict=True)):
            size = prefix + tail.mask.shape[1]
            where = slots_of(table[row : row + 1], torch.arange(size)[None], page_size)[0]
            history = torch.randn(2, size, spec.num_kv_heads, spec.head_dim, generator=rng).to(dtype)
            rows = slice(first, first + count)
            new = prefix + torch.tensor(tail.columns)
            visible = tail.mask[real[rows]].any(dim=0)
            stored = torch.cat([torch.ones(prefix, dtype=torch.bool), visible])
            kv.keys(layer)[where[stored].to(device)] = history[0, stored].to(device)
            kv.values(layer)[where[stored].to(device)] = history[1, stored].to(device)
            # What this pass itself writes is not there yet.
            kv.keys(layer)[where[new].to(device)] = math.nan
            kv.values(layer)[where[new].to(device)] = math.nan
            slots[rows] = torch.where(real[rows], where[new], slots[rows])
            history[0, new] = fused[rows, spec.num_heads : spec.num_heads + spec.num_kv_heads]
            history[1, new] = fused[rows, spec.num_heads + spec.num_kv_heads :]
            depths = torch.cat([torch.arange(-prefix, 0), tail.depths])
            for query in range(count):
                if real[first + query]:
                    seen = torch.cat([torch.ones(prefix, dtype=torch.bool), tail.mask[query]])
                    own = int(tail.depths[tail.columns[query]])
                    if spec.window is not None:
                        seen &= depths > own - spec.window
                    q = fused[first + query, : spec.num_heads]
                    out[first + query] = _naive(q, history[0, seen], history[1, seen], spec)
            first += count
        worlds_q.append(fused[:, : spec.num_heads].to(device))
        worlds_k.append(fused[:, spec.num_heads : -spec.num_kv_heads].to(device))
        worlds_v.append(fused[:, -spec.num_kv_heads :].to(device))
        expected.append(out)

    tree = kind in (Kind.TREE, Kind.DRAFT_STEP)
    query_depths = torch.stack([t.depths[t.columns] for t in tails]) if tree else None
    batch = AttnBatch(
        query_lens=tuple(query_lens),
        prefix_lens=torch.tensor(prefixes, device=device),
        page_table=table.to(device),
        slots=slots.to(device),
        max_length=max_length,
        host_prefix_lens=tuple(prefixes) if known else None,
        tail_mask=torch.stack([t.mask for t in tails]).to(device) if tree else None,
        query_depths=None if query_depths is None else query_depths.to(device),
        tail_depths=torch.stack([t.depths for t in tails]).to(device) if tree else None,
    )
    return World(tuple(layers), kv, batch, worlds_q, worlds_k, worlds_v, real, expected)


def build_pair(kind: Kind, layers: Sequence[AttentionSpec], device: torch.device) -> tuple[World, World]:
    """Two worlds whose tensors have equal shapes; prefixes differ as well unless the host knows them."""
    old = build(kind, layers, 16, torch.float32, device, 5)
    prefixes = old.batch.host_prefix_lens
    if prefixes is None:
        prefixes = tuple(int_rows(old.batch.prefix_lens.flip(0)[None])[0])
    new = build(kind, layers, 16, torch.float32, device, 6, prefixes)
    # The page table of a running engine has one width.
    width = max(old.batch.page_table.shape[1], new.batch.page_table.shape[1])
    bound = max(old.batch.max_length, new.batch.max_length)
    return _widened(old, width, bound), _widened(new, width, bound)


def _lengths(kind: Kind) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
    """Query counts, how many of them are real, prefix lengths, and whether the host knows these."""
    match kind:
        case Kind.RAGGED_PREFILL:
            return (5, 37, 1, 20), (5, 37, 1, 20), (0, 0, 0, 0), True
        case Kind.EQUAL_PREFILL:
            return (18, 18), (18, 18), (0, 0), True
        case Kind.CHUNKED_PREFILL:
            return (5, 21, 1, 9), (5, 21, 1, 9), (7, 30, 16, 0), True
        case Kind.PADDED_PREFILL:
            return (18, 18, 18), (18, 3, 9), (0, 0, 13), True
        case Kind.DECODE:
            return (1, 1, 1, 1), (1, 1, 0, 1), (0, 33, 5, 70), False
        case Kind.EXTEND:
            return (6, 6, 6), (6, 2, 1), (0, 31, 16), False
        case Kind.CHAIN:
            return (5, 5, 5), (5, 5, 0), (14, 47, 3), False
        case Kind.TREE:
            return (12, 12, 12, 12), (12, 12, 12, 7), (0, 13, 64, 30), False
        case Kind.DRAFT_STEP:
            return (4, 4, 4), (4, 4, 0), (3, 15, 40), False


def _tail(kind: Kind, count: int, rng: torch.Generator) -> Tail:
    if kind is Kind.TREE:
        mask, depths = _tree(count, rng)
        return Tail(mask, depths, list(range(count)))
    if kind is Kind.DRAFT_STEP:
        # The frontier is the last level of a tree whose earlier levels are in their slots already.
        size = 3 * count
        mask, depths = _tree(size, rng)
        mask[size - count :, size - count :] = torch.eye(count, dtype=torch.bool)
        return Tail(mask[size - count :], depths, list(range(size - count, size)))
    return Tail(torch.ones(count, count, dtype=torch.bool).tril(), torch.arange(count), list(range(count)))


def _tree(size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random ancestor mask ``[size, size]`` and the depths of its nodes."""
    mask = torch.eye(size, dtype=torch.bool)
    depths = torch.zeros(size, dtype=torch.int64)
    for node in range(1, size):
        parent = int(torch.randint(0, node, (), generator=rng))
        mask[node] |= mask[parent]
        depths[node] = depths[parent] + 1
    return mask, depths


def _pages(needed: Sequence[int], max_length: int, page_size: int, rng: torch.Generator) -> tuple[Tensor, int]:
    counts = [-(-n // page_size) for n in needed]
    num_pages = 2 + sum(counts) + 3
    order = int_rows(torch.randperm(num_pages - 2, generator=rng)[None] + 2)[0]
    table = torch.zeros(len(needed), -(-max_length // page_size), dtype=torch.int64)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    return table, num_pages


def _naive(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """One query ``[num_heads, D]`` over its visible keys ``[S, num_kv_heads, D]``, in float64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(spec.num_heads):
        group = head // (spec.num_heads // spec.num_kv_heads)
        scores = k[:, group].double() @ q[head].double() * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        if spec.sinks is not None:
            scores = torch.cat([scores, spec.sinks[head].double().cpu()[None]])
        weights = torch.softmax(scores, dim=0)[: k.shape[0]]
        out[head] = weights @ v[:, group].double()
    return out


def _widened(world: World, width: int, bound: int) -> World:
    table = world.batch.page_table
    wide = table.new_zeros(table.shape[0], width)
    wide[:, : table.shape[1]] = table
    return evolve(world, batch=evolve(world.batch, page_table=wide, max_length=bound))
