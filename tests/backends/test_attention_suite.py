"""The attention suite rejects backends with the faults that are seen in the field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.interfaces import AttnPlan, KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities
from outrider_backends.sdpa import SdpaBackend
from tests.backends.attention_cases import Kind, build, layers_for
from tests.backends.attention_checks import check_independence, check_refresh, check_values, fails

CPU = torch.device("cpu")
LAYERS = layers_for(SdpaBackend().capabilities, CPU)

BatchFault: TypeAlias = Callable[[AttnBatch], AttnBatch]
SpecFault: TypeAlias = Callable[[AttentionSpec], AttentionSpec]
PlanFault: TypeAlias = Callable[[AttnPlan], AttnPlan]


def same_batch(batch: AttnBatch) -> AttnBatch:
    return batch


def same_spec(spec: AttentionSpec) -> AttentionSpec:
    return spec


def same_plan(plan: AttnPlan) -> AttnPlan:
    return plan


@frozen
class FaultyBackend:
    """The real backend, lied to about the batch or the layers, or with its plan wrapped."""

    of_batch: BatchFault = same_batch
    of_spec: SpecFault = same_spec
    of_plan: PlanFault = same_plan

    @property
    def capabilities(self) -> AttnCapabilities:
        return SdpaBackend().capabilities

    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        specs = [self.of_spec(spec) for spec in layers]
        return self.of_plan(SdpaBackend().plan(self.of_batch(batch), specs, kv))


@frozen
class StalePlan:
    """Keeps what it computed when it was made."""

    plan: AttnPlan

    def refresh(self) -> None:
        return None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.plan.attend(layer, q, k, v)


@frozen
class InterleavedHeads:
    """Takes query head h to share kv head h % num_kv_heads."""

    plan: AttnPlan

    def refresh(self) -> None:
        self.plan.refresh()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, groups = k.shape[1], q.shape[1] // k.shape[1]
        swapped = q.reshape(-1, groups, heads, q.shape[2]).transpose(1, 2).reshape(q.shape)
        out = self.plan.attend(layer, swapped, k, v)
        return out.reshape(-1, heads, groups, q.shape[2]).transpose(1, 2).reshape(q.shape)


@frozen
class MixesRows:
    """Lets a little of the first request into every other."""

    plan: AttnPlan

    def refresh(self) -> None:
        self.plan.refresh()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = self.plan.attend(layer, q, k, v)
        return out + 1e-4 * out[0]


@frozen
class NeverWrites:
    """Attends as if the cache held the new keys already."""

    plan: AttnPlan

    def refresh(self) -> None:
        self.plan.refresh()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.plan.attend(layer, q, torch.zeros_like(k), torch.zeros_like(v))


def to_null_page(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, slots=torch.where(batch.slots < 32, 0, batch.slots))


def padding_in_own_pages(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, slots=torch.where(batch.slots < 32, batch.slots.max(), batch.slots))


def no_tree(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, tail_mask=None)


def no_ancestors(batch: AttnBatch) -> AttnBatch:
    assert batch.tail_mask is not None
    own = torch.eye(batch.tail_mask.shape[1], dtype=torch.bool).expand_as(batch.tail_mask)
    return evolve(batch, tail_mask=own)


def slots_as_positions(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, query_depths=None, tail_depths=None)


def longer_prefix(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, prefix_lens=batch.prefix_lens + 1)


def shorter_prefix(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, prefix_lens=(batch.prefix_lens - 1).clamp(min=0))


def pages_in_order(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, page_table=batch.page_table.sort(dim=1, descending=True).values)


def first_row_pages(batch: AttnBatch) -> AttnBatch:
    return evolve(batch, page_table=batch.page_table[:1].expand_as(batch.page_table))


def narrower(spec: AttentionSpec) -> AttentionSpec:
    return spec if spec.window is None or spec.window == 1 else evolve(spec, window=spec.window - 1)


def wider(spec: AttentionSpec) -> AttentionSpec:
    return spec if spec.window is None else evolve(spec, window=spec.window + 1)


VALUE_FAULTS = {
    "padding writes to the page of zeros": (Kind.EXTEND, FaultyBackend(of_batch=to_null_page)),
    "padding writes to pages of a request": (Kind.EXTEND, FaultyBackend(of_batch=padding_in_own_pages)),
    "tree mask ignored": (Kind.TREE, FaultyBackend(of_batch=no_tree)),
    "ancestors ignored": (Kind.TREE, FaultyBackend(of_batch=no_ancestors)),
    "tree slots taken for positions": (Kind.TREE, FaultyBackend(of_batch=slots_as_positions)),
    "frontier slots taken for positions": (Kind.DRAFT_STEP, FaultyBackend(of_batch=slots_as_positions)),
    "prefix one too long": (Kind.DECODE, FaultyBackend(of_batch=longer_prefix)),
    "prefix one too short": (Kind.DECODE, FaultyBackend(of_batch=shorter_prefix)),
    "pages sorted": (Kind.DECODE, FaultyBackend(of_batch=pages_in_order)),
    "pages of the first row": (Kind.CHUNKED_PREFILL, FaultyBackend(of_batch=first_row_pages)),
    "window ignored": (Kind.DECODE, FaultyBackend(of_spec=lambda spec: evolve(spec, window=None))),
    "window ignored in prefill": (Kind.RAGGED_PREFILL, FaultyBackend(of_spec=lambda spec: evolve(spec, window=None))),
    "window one too narrow": (Kind.CHAIN, FaultyBackend(of_spec=narrower)),
    "window one too wide": (Kind.CHUNKED_PREFILL, FaultyBackend(of_spec=wider)),
    "soft cap ignored": (Kind.DECODE, FaultyBackend(of_spec=lambda spec: evolve(spec, soft_cap=None))),
    "sinks ignored": (Kind.DECODE, FaultyBackend(of_spec=lambda spec: evolve(spec, sinks=None))),
    "scale of its own": (Kind.DECODE, FaultyBackend(of_spec=lambda spec: evolve(spec, scale=spec.head_dim**-0.5))),
    "query heads interleaved": (Kind.DECODE, FaultyBackend(of_plan=InterleavedHeads)),
    "new keys not written": (Kind.DECODE, FaultyBackend(of_plan=NeverWrites)),
}


@pytest.mark.parametrize(("kind", "backend"), VALUE_FAULTS.values(), ids=VALUE_FAULTS.keys())
def test_wrong_values_are_rejected(kind: Kind, backend: FaultyBackend) -> None:
    check_values(SdpaBackend(), build(kind, LAYERS, 16, torch.float32, CPU, 1))
    assert fails(lambda: check_values(backend, build(kind, LAYERS, 16, torch.float32, CPU, 1)))


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.TREE, Kind.RAGGED_PREFILL], ids=lambda kind: kind.value)
def test_mixing_of_rows_is_rejected(kind: Kind) -> None:
    world = build(kind, LAYERS, 16, torch.float32, CPU, 1)
    assert fails(lambda: check_independence(FaultyBackend(of_plan=MixesRows), world))


def test_stale_plan_is_rejected() -> None:
    worlds = [build(Kind.DECODE, LAYERS, 16, torch.float32, CPU, seed, (5, 9, 30, 40)) for seed in (1, 2)]
    assert fails(lambda: check_refresh(FaultyBackend(of_plan=StalePlan), *worlds))
