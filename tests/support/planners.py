"""Planners for tests of runners: one that hands out a given plan, and batches to go with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import field, frozen
from torch import Tensor

from outrider.interfaces import AttnPlan
from outrider.types import AttnBatch, AttnCapabilities, CaptureSupport
from tests.support.toy_target import CPU

__all__ = ["Doubling", "FixedPlanner", "uniform_batch"]


class Doubling:
    """Attention that doubles its query, so that a body's use of it shows."""

    def refresh(self) -> None:
        return None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 2 * q


def _doubling(batch: AttnBatch) -> AttnPlan:
    return Doubling()


@frozen(eq=False)
class FixedPlanner:
    """Plans are what ``make`` gives, for a call and for a capture alike; every batch planned for is kept."""

    make: Callable[[AttnBatch], AttnPlan] = _doubling
    capture: CaptureSupport = CaptureSupport.UNIFORM_QUERIES
    planned: list[AttnBatch] = field(factory=list[AttnBatch])
    device: torch.device = CPU

    @property
    def capabilities(self) -> AttnCapabilities:
        return AttnCapabilities(
            name="fixed",
            devices=frozenset({"cpu"}),
            dtypes=frozenset({torch.float32}),
            page_sizes=None,
            head_dims=None,
            tree_masks=True,
            windows=True,
            soft_cap=True,
            sinks=True,
            capture=self.capture,
        )

    @property
    def page_size(self) -> int:
        return 4

    def plan(self, batch: AttnBatch) -> AttnPlan:
        self.planned.append(batch)
        return self.make(batch)

    def captured_plan(self, batch: AttnBatch) -> AttnPlan:
        return self.plan(batch)

    def static_plan(self, batch: AttnBatch) -> AttnPlan:
        return self.plan(batch)


def uniform_batch(requests: int, queries: int = 1, max_length: int = 64, pages: int = 16) -> AttnBatch:
    """``requests`` of ``queries`` each, none of which has a prefix."""
    return AttnBatch(
        query_lens=(queries,) * requests,
        prefix_lens=torch.zeros(requests, dtype=torch.int64),
        page_table=torch.zeros(requests, pages, dtype=torch.int64),
        slots=torch.full((requests * queries,), 4, dtype=torch.int64),
        max_length=max_length,
    )
