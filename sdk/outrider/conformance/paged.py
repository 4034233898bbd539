"""Passes over a paged cache of their own, for conformance checks: ragged, chunked, cached and tree-shaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import define, field, frozen
from torch import Tensor

from outrider.interfaces import NUM_RESERVED_PAGES, AttnBackend
from outrider.kv import PagedKVCache, PagePool
from outrider.kv.pages import slots_of_rows
from outrider.types import Attend, AttentionSpec, AttnBatch

__all__ = [
    "PagedMemory",
    "Rows",
    "TreeRows",
    "WatchedAttend",
    "attend_nothing",
    "differs",
    "offset",
    "run_nothing",
    "tolerance",
]

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


def tolerance(dtype: torch.dtype) -> float:
    """How far two ways to compute the same rows may be apart, relative to the largest value."""
    return _TOLERANCE.get(dtype, 8e-2)


def offset(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected value; infinite where shapes differ or a value is NaN."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel():
        return 0.0
    scale = max(float(expected.double().abs().max()), 1e-6)
    worst = float((found.double() - expected.double()).abs().max()) / scale
    return worst if worst == worst else float("inf")


def differs(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are further apart than rounding explains."""
    return offset(found, expected) > tolerance(expected.dtype)


@frozen
class TreeRows:
    """A tree below a prefix: ``parents[i]`` is the row of the parent of row i, -1 for rows that follow the prefix."""

    parents: tuple[int, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of each row from the end of the prefix."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def path_to(self, row: int) -> tuple[int, ...]:
        """Rows from the top to ``row``, itself included."""
        path: list[int] = []
        while row >= 0:
            path.append(row)
            row = self.parents[row]
        return tuple(reversed(path))


@frozen(eq=False)
class Rows:
    """What a pass over new rows needs: ``positions [T]``, ``lengths [T]`` and attention through the cache."""

    positions: Tensor
    lengths: Tensor
    attend: Attend


class PagedMemory:
    """KV memory for some sequences of ``capacity`` tokens each, with as much room for tree rows."""

    def __init__(
        self,
        attention: AttnBackend,
        layers: Sequence[AttentionSpec],
        dtype: torch.dtype,
        device: torch.device,
        num_sequences: int,
        capacity: int,
        page_size: int,
    ) -> None:
        pages_per_row = -(-capacity // page_size)
        num_pages = NUM_RESERVED_PAGES + num_sequences * pages_per_row
        self._attention, self._layers, self._device, self._page_size = attention, layers, device, page_size
        self._kv = PagedKVCache(layers, num_pages, page_size, dtype, device)
        self._pool = PagePool(num_sequences, pages_per_row, num_pages, page_size, device)
        for row in range(num_sequences):
            self._pool.reserve(row, capacity)

    def rows(self, prefixes: Sequence[int], counts: Sequence[int]) -> Rows:
        """``counts[b]`` causal rows of sequence b after ``prefixes[b]`` cached ones, and so on for all sequences."""
        indices = self._tensor([place for p, n in zip(prefixes, counts, strict=True) for place in range(p, p + n)])
        totals = [p + n for p, n in zip(prefixes, counts, strict=True)]
        batch = AttnBatch(
            query_lens=tuple(counts),
            prefix_lens=self._tensor(prefixes),
            page_table=self._pool.page_table,
            slots=self._slots(indices, counts),
            max_length=max(totals),
            host_prefix_lens=tuple(prefixes),
        )
        lengths = self._tensor([total for total, n in zip(totals, counts, strict=True) for _ in range(n)])
        return Rows(indices, lengths, self._plan(batch))

    def tree_rows(self, prefixes: Sequence[int], tree: TreeRows) -> Rows:
        """The rows of ``tree`` after ``prefixes[b]`` cached ones of each sequence."""
        count, sequences = len(tree.parents), len(prefixes)
        depths = self._tensor(tree.depths)
        starts = self._tensor(prefixes)
        mask = torch.zeros(count, count, dtype=torch.bool, device=self._device)
        for row in range(count):
            mask[row, list(tree.path_to(row))] = True
        places = (starts[:, None] + torch.arange(count, device=self._device)).reshape(-1)
        positions = (starts[:, None] + depths).reshape(-1)
        batch = AttnBatch(
            query_lens=(count,) * sequences,
            prefix_lens=starts,
            page_table=self._pool.page_table,
            slots=self._slots(places, [count] * sequences),
            max_length=max(prefixes) + count,
            tail_mask=mask.expand(sequences, -1, -1),
            query_depths=depths.expand(sequences, -1),
            tail_depths=depths.expand(sequences, -1),
        )
        return Rows(positions, positions + 1, self._plan(batch))

    def _plan(self, batch: AttnBatch) -> Attend:
        return self._attention.plan(batch, self._layers, self._kv).attend

    def _slots(self, indices: Tensor, counts: Sequence[int]) -> Tensor:
        row_of = self._tensor([row for row, count in enumerate(counts) for _ in range(count)])
        return slots_of_rows(self._pool.page_table, row_of, indices, self._page_size)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)


def attend_nothing(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG001 - an `Attend`
    """The queries themselves, of the shape of attention's outcome whatever the keys are; needs no cache."""
    return q


def run_nothing(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:  # noqa: ARG001 - a `RunOutside`
    """A result of the right shape, as where a graph is captured: what is declared as outside of it is not run then."""
    return torch.zeros_like(tensors[0])


@define(eq=False)
class WatchedAttend:
    """Attention that notes its calls; that of layer ``shift`` gives another outcome than it should."""

    inner: Attend
    layers: Sequence[AttentionSpec]
    dtype: torch.dtype
    shift: int | None = None
    called: list[int] = field(factory=list[int])
    faults: list[str] = field(factory=list[str])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of ``layer``, after a look at what it is given."""
        self.called.append(layer)
        if 0 <= layer < len(self.layers):
            spec = self.layers[layer]
            for name, tensor, heads in (
                ("q", q, spec.num_heads),
                ("k", k, spec.num_kv_heads),
                ("v", v, spec.num_kv_heads),
            ):
                expected = (q.shape[0], heads, spec.head_dim)
                if tuple(tensor.shape) != expected or tensor.dtype != self.dtype:
                    self.faults.append(
                        f"layer {layer} gives {name} {list(tensor.shape)} {tensor.dtype}, its spec says {list(expected)} "
                        f"{self.dtype}; correct the spec or the reshape"
                    )
        out = self.inner(layer, q, k, v)
        return out + 1.0 if layer == self.shift else out
