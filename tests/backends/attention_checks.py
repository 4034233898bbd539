"""What any attention backend must satisfy on any world: values, independence of neighbours, refresh, capture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import AttnBackend, AttnPlan
from outrider.types import AttnBatch
from tests.backends.attention_cases import World

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def attend_all(backend: AttnBackend, world: World, plan: AttnPlan | None = None) -> list[Tensor]:
    """Every layer's output for the whole batch, on the CPU in float64."""
    plan = plan or backend.plan(world.batch, world.layers, world.kv)
    inputs = enumerate(zip(world.q, world.k, world.v, strict=True))
    return [plan.attend(layer, q, k, v).double().cpu() for layer, (q, k, v) in inputs]


def check_values(backend: AttnBackend, world: World) -> None:
    """Real rows equal the reference, the cache holds what was written, and nothing touched the page of zeros."""
    outputs = attend_all(backend, world)
    dtype = world.q[0].dtype
    real = world.real.to(world.batch.slots.device)
    for layer, (got, wanted) in enumerate(zip(outputs, world.expected, strict=True)):
        assert got.shape == wanted.shape
        error = (got - wanted)[world.real].abs().max()
        assert error <= TOLERANCE[dtype], f"layer {layer} ({world.layers[layer]}): off by {error}"
        written = world.batch.slots[real]
        assert torch.equal(world.kv.keys(layer)[written], world.k[layer][real])
        assert torch.equal(world.kv.values(layer)[written], world.v[layer][real])
        null = slice(0, world.kv.page_size)
        assert not world.kv.keys(layer)[null].any()
        assert not world.kv.values(layer)[null].any()


def check_independence(backend: AttnBackend, world: World) -> None:
    """A request gives the same alone as with its neighbours, within 1e-6 (float32)."""
    together = attend_all(backend, world)
    first = 0
    for row, count in enumerate(world.batch.query_lens):
        rows = slice(first, first + count)
        first += count
        if not world.real[rows].any():
            continue
        alone = attend_all(backend, _alone(world, row, rows))
        for layer, got in enumerate(alone):
            error = (got - together[layer][rows])[world.real[rows]].abs().max()
            assert error <= 1e-6, f"layer {layer}, request {row}: off by {error}"


def check_refresh(backend: AttnBackend, old: World, new: World) -> None:
    """A plan made for ``old`` and refreshed after its tensors became ``new``'s equals a new plan, bit for bit."""
    plan = backend.plan(old.batch, old.layers, old.kv)
    attend_all(backend, old, plan)
    _become(old, new)
    plan.refresh()
    refreshed = attend_all(backend, evolve(new, kv=old.kv), plan)
    fresh = attend_all(backend, new)
    for layer in range(len(old.layers)):
        assert torch.equal(refreshed[layer][new.real], fresh[layer][new.real]), f"layer {layer}"
        error = (refreshed[layer] - new.expected[layer])[new.real].abs().max()
        assert error <= TOLERANCE[new.q[0].dtype], f"layer {layer}: off by {error}"


def check_capture(backend: AttnBackend, old: World, new: World) -> None:
    """A CUDA graph of refresh and every layer, captured on ``old``, gives what ``new`` wants after it became that."""
    plan = backend.plan(old.batch, old.layers, old.kv)

    def body() -> list[Tensor]:
        plan.refresh()
        inputs = enumerate(zip(old.q, old.k, old.v, strict=True))
        return [plan.attend(layer, q, k, v).clone() for layer, (q, k, v) in inputs]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves Stream.__new__ unannotated
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = body()
    _become(old, new)
    for mine, other in ((old.q, new.q), (old.k, new.k), (old.v, new.v)):
        for target, source in zip(mine, other, strict=True):
            target.copy_(source)
    graph.replay()
    for layer, expected in enumerate(new.expected):
        error = (outputs[layer].double().cpu() - expected)[new.real].abs().max()
        assert error <= TOLERANCE[new.q[0].dtype], f"layer {layer}: off by {error}"


def fails(check: Callable[[], None]) -> bool:
    """Whether a check rejects what it is given."""
    try:
        check()
    except AssertionError:
        return True
    return False


def _alone(world: World, row: int, rows: slice) -> World:
    batch = world.batch
    one = slice(row, row + 1)
    count = batch.query_lens[row]
    alone = AttnBatch(
        query_lens=(count,),
        prefix_lens=batch.prefix_lens[one],
        page_table=batch.page_table[one],
        slots=batch.slots[rows],
        max_length=int(batch.prefix_lens[row]) + (count if batch.tail_mask is None else batch.tail_mask.shape[2]),
        host_prefix_lens=None if batch.host_prefix_lens is None else batch.host_prefix_lens[one],
        tail_mask=None if batch.tail_mask is None else batch.tail_mask[one],
        query_depths=None if batch.query_depths is None else batch.query_depths[one],
        tail_depths=None if batch.tail_depths is None else batch.tail_depths[one],
    )
    return evolve(
        world,
        batch=alone,
        q=[t[rows] for t in world.q],
        k=[t[rows] for t in world.k],
        v=[t[rows] for t in world.v],
    )


def _become(old: World, new: World) -> None:
    """Change what a plan for ``old`` reads, in place, to what ``new`` holds."""
    for target, source in zip(_tensors(old.batch), _tensors(new.batch), strict=True):
        target.copy_(source)
    for layer in range(len(old.layers)):
        old.kv.keys(layer).copy_(new.kv.keys(layer))
        old.kv.values(layer).copy_(new.kv.values(layer))


def _tensors(batch: AttnBatch) -> list[Tensor]:
    found = [batch.prefix_lens, batch.page_table, batch.slots]
    found += [t for t in (batch.tail_mask, batch.query_depths, batch.tail_depths) if t is not None]
    return found
