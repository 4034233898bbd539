"""Requests with a cached past, for running a body of the trained pair by different runners on equal memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.drafting.bodies import DraftExtendBody, DraftStepBody
from outrider.interfaces import NUM_RESERVED_PAGES, GraphBody, GraphRunner
from outrider.kv import PagedKVCache, PagePool, slots_of
from outrider.loop.core import TargetBody
from outrider.planning import PlanCache
from outrider.types import AttentionSpec, AttnBatch, Phase, PhaseShape
from outrider_backends.sdpa import SdpaBackend
from tests.support.pair import trained_pair
from tests.support.toy_target import CPU

__all__ = ["PHASES", "TREE_PARENTS", "PairWorld"]

PHASES = ("decode", "verify", "verify tree", "extend", "step", "step tree")
"""Every way the loop runs a uniform body."""

TREE_PARENTS = (-1, 0, 0, 1, 1, 2)
"""Parents of root and drafted nodes: two branches, one of which branches again."""

_PAGE_SIZE = 4
_PAGES_PER_ROW = 20


class PairWorld:
    """One phase of the trained pair over KV memory of its own; equal seeds give equal worlds."""

    def __init__(self, phase: str, rows: int = 8, seed: int = 0) -> None:
        pair = trained_pair()
        self._generator = torch.Generator().manual_seed(seed)
        self.phase, self.body, self.queries = _phase(phase)
        self.tree = phase.endswith("tree")
        layers: Sequence[AttentionSpec] = pair.target.stack.spec.layers
        if phase.startswith(("extend", "step")):
            layers = pair.eagle3.spec.layers
        num_pages = NUM_RESERVED_PAGES + rows * _PAGES_PER_ROW
        self.kv = PagedKVCache(layers, num_pages, _PAGE_SIZE, torch.float32, CPU)
        self.pool = PagePool(rows, _PAGES_PER_ROW, num_pages, _PAGE_SIZE, CPU)
        for layer in range(len(layers)):
            for part in (self.kv.keys(layer), self.kv.values(layer)):
                past = part[NUM_RESERVED_PAGES * _PAGE_SIZE :]
                past.copy_(torch.randn(past.shape, generator=self._generator))
        self.num_layers = len(layers)
        self.planner = PlanCache(SdpaBackend(), layers, self.kv)
        self.lengths = torch.zeros(rows, dtype=torch.int64)

    def reserve(self, lengths: Sequence[int]) -> None:
        """Give the first rows pages and a past of ``lengths`` positions; the other rows have none."""
        for row in range(self.lengths.shape[0]):
            self.pool.release(row)
        self.lengths.zero_()
        for row, length in enumerate(lengths):
            assert self.pool.reserve(row, length + self.queries)
            self.lengths[row] = length

    def batch(self, requests: int) -> AttnBatch:
        """The first ``requests`` rows, each with its queries after its past."""
        prefix, table = self.lengths[:requests], self.pool.page_table[:requests]
        places = prefix[:, None] + torch.arange(self.queries)
        mask = depths = None
        if self.tree:
            mask, depths = (part.expand(requests, *part.shape) for part in _tree(self.queries))
        return AttnBatch(
            query_lens=(self.queries,) * requests,
            prefix_lens=prefix,
            page_table=table,
            slots=slots_of(table, places, _PAGE_SIZE).reshape(-1),
            max_length=int(prefix.max()) + self.queries,
            tail_mask=mask,
            query_depths=depths,
            tail_depths=depths,
        )

    def inputs(self, requests: int) -> dict[str, Tensor]:
        """Random rows, each at its position."""
        tokens = requests * self.queries
        depths = _tree(self.queries)[1] if self.tree else torch.arange(self.queries)
        positions = (self.lengths[:requests, None] + depths).reshape(-1)
        return {
            slot.name: positions
            if slot.name == "positions"
            else torch.randn(tokens, *slot.trailing, generator=self._generator)
            for slot in self.body.inputs
        }

    def run(self, runner: GraphRunner, requests: int, padded_to: int | None = None) -> dict[str, Tensor]:
        """One call, its outputs and all that is cached afterwards (the trash page aside), copied.

        ``padded_to``: rows without pages follow, up to so many, and are cut off again: a padded call spelt out.
        """
        inputs, batch = self.inputs(requests), self.batch(requests)
        if padded_to is not None:
            tokens, batch = (padded_to - requests) * self.queries, self.batch(padded_to)
            inputs = {name: torch.cat([part, part.new_zeros(tokens, *part.shape[1:])]) for name, part in inputs.items()}
        outputs = runner.run(self.phase, self.body, inputs, batch, self.planner)
        found = {name: tensor[: requests * self.queries].clone() for name, tensor in outputs.items()}
        return found | self.cached()

    def shape(self, requests: int) -> PhaseShape:
        """The shape of a call."""
        return PhaseShape.of(self.batch(requests))

    def cached(self) -> dict[str, Tensor]:
        """A copy of every key and value that may be read."""
        trash = slice(_PAGE_SIZE, 2 * _PAGE_SIZE)
        found: dict[str, Tensor] = {}
        for layer in range(self.num_layers):
            for name, part in (("keys", self.kv.keys(layer)), ("values", self.kv.values(layer))):
                found[f"{name} {layer}"] = part.clone()
                found[f"{name} {layer}"][trash] = 0.0
        return found


def _phase(name: str) -> tuple[Phase, GraphBody, int]:
    pair = trained_pair()
    target = TargetBody(pair.target, pair.eagle3.spec.taps)
    match name:
        case "decode":
            return Phase.TARGET_DECODE, target, 1
        case "verify":
            return Phase.TARGET_VERIFY, target, 5
        case "verify tree":
            return Phase.TARGET_VERIFY, target, len(TREE_PARENTS)
        case "extend":
            return Phase.DRAFT_EXTEND, DraftExtendBody(pair.eagle3), 5
        case "step":
            return Phase.DRAFT_STEP, DraftStepBody(pair.eagle3), 1
        case _:
            return Phase.DRAFT_STEP, DraftStepBody(pair.eagle3), len(TREE_PARENTS)


def _tree(nodes: int) -> tuple[Tensor, Tensor]:
    """``[N, N]`` who sees whom, and the depth of each node."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for node, parent in enumerate(TREE_PARENTS):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask, mask.sum(dim=1) - 1
