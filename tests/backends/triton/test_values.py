"""The Triton backend in the interpreter: the suite of every attention backend, and what is particular to kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.kv import PagedKVCache
from outrider.types import AttentionSpec
from outrider_backends.triton import create, tiling
from tests.backends.attention_cases import Kind, World, build, build_pair, layers_for
from tests.backends.attention_checks import TOLERANCE, attend_all, check_refresh, check_values
from tests.backends.triton.scenes import expected, make_scene, needs_interpreter, run

pytestmark = needs_interpreter

CPU = torch.device("cpu")
BACKEND = create()
EVERY = layers_for(BACKEND.capabilities, CPU)
FEW = (EVERY[5], EVERY[-1])  # windowed; window, soft cap and sinks
LAYERS = (EVERY[0], EVERY[3], *FEW)

PAGE_SIZE = dict(zip(Kind, (16, 7, 1, 64, 16, 1, 7, 16, 64), strict=True))

every_kind = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
some_kinds = pytest.mark.parametrize(
    "kind", [Kind.CHUNKED_PREFILL, Kind.DECODE, Kind.EXTEND, Kind.TREE], ids=lambda kind: kind.value
)


def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile of keys is a split of its own."""
    monkeypatch.setattr(tiling, "CHUNK_KEYS", 32)


@every_kind
def test_equals_reference(kind: Kind) -> None:
    layers = LAYERS if kind in (Kind.DECODE, Kind.TREE) else FEW[1:]
    check_values(BACKEND, build(kind, layers, PAGE_SIZE[kind], torch.float32, CPU, 1))


@some_kinds
def test_equals_reference_when_split(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    short_splits(monkeypatch)
    world = build(kind, FEW[1:], 16, torch.float32, CPU, 2)
    check_values(BACKEND, world)


@some_kinds
def test_equals_reference_in_half_precision(kind: Kind) -> None:
    check_values(BACKEND, build(kind, FEW[1:], 16, torch.float16, CPU, 3))


@pytest.mark.parametrize("kind", [Kind.RAGGED_PREFILL, Kind.CHUNKED_PREFILL], ids=lambda kind: kind.value)
def test_ragged_batches_need_no_prefix_lengths_on_the_host(kind: Kind) -> None:
    world = build(kind, FEW[1:], 16, torch.float32, CPU, 4)
    check_values(BACKEND, evolve(world, batch=evolve(world.batch, host_prefix_lens=None)))


@pytest.mark.parametrize("kind", [Kind.CHAIN, Kind.TREE], ids=lambda kind: kind.value)
def test_a_plan_follows_the_tensors_of_its_batch(kind: Kind) -> None:
    check_refresh(BACKEND, *build_pair(kind, FEW[1:], CPU))


class NoOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    """Fails on every operator."""

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        raise AssertionError(f"{func} ran")


def test_refresh_has_nothing_to_do() -> None:
    world = build(Kind.TREE, FEW[:1], 16, torch.float32, CPU, 5)
    plan = BACKEND.plan(world.batch, world.layers, world.kv)
    with NoOperators():  # type: ignore[no-untyped-call]  # torch leaves TorchDispatchMode.__init__ unannotated
        plan.refresh()
        with pytest.raises(AssertionError, match="ran"):
            world.q[0].clone()


@every_kind
def test_only_the_slots_of_real_rows_change(kind: Kind) -> None:
    world = build(kind, FEW[:1], 16, torch.float32, CPU, 6)
    untouched = torch.ones(world.kv.num_slots, dtype=torch.bool)
    untouched[world.batch.slots[world.real]] = False
    before = [world.kv.keys(0).clone(), world.kv.values(0).clone()]
    attend_all(BACKEND, world)
    for old, new in zip(before, (world.kv.keys(0), world.kv.values(0)), strict=True):
        assert torch.equal(old.view(torch.int32)[untouched], new.view(torch.int32)[untouched])


@pytest.mark.parametrize("split", [False, True])
def test_padding_is_finite(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padding request (no prefix, no page, a mask that hides everything, NaN) and padding rows of real ones."""
    if split:
        short_splits(monkeypatch)
    for kind in (Kind.TREE, Kind.EXTEND):
        world = build(kind, FEW[1:], 16, torch.float32, CPU, 7)
        rows = slice(0, world.batch.query_lens[0])
        world.batch.slots[rows] = 16
        world.batch.page_table[0] = 0
        world.batch.prefix_lens[0] = 0
        if world.batch.tail_mask is not None:
            world.batch.tail_mask[0] = False
        later = world.real.clone()
        later[rows] = False
        for got, wanted in zip(attend_all(BACKEND, world), world.expected, strict=True):
            assert bool(got.isfinite().all())
            assert not got[rows].any()
            assert (got - wanted)[later].abs().max() <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 80), (4, 4, 96), (7, 1, 24), (20, 1, 16)])
def test_head_dims_and_groups_that_are_no_power_of_two(heads: int, kv_heads: int, head_dim: int) -> None:
    spec = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, window=30)
    for tree in (False, True):
        scene = make_scene(spec, (5, 40), (5, 5), tree=tree, seed=heads)
        assert (run(BACKEND, scene) - expected(scene)).abs().max() <= 1e-5


def test_splits_of_real_size() -> None:
    """Lengths that really are cut, with the constants that a card uses, in float32 and with the tensor cores' tiles."""
    for dtype, off in ((torch.float32, 1e-5), (torch.float16, 4e-3)):
        scene = make_scene(AttentionSpec(2, 1, 16, 0.25), (127, 128, 129, 513), (2, 2, 2, 2), dtype=dtype)
        plan = BACKEND.plan(scene.batch, [scene.spec], scene.kv)
        first, second = (plan.attend(0, scene.q, scene.k, scene.v) for _ in range(2))
        assert (first - expected(scene)).abs().max() <= off
        # The tickets are back at zero, so the same plan serves again.
        assert torch.equal(first, second)


def test_soft_cap_is_exact_for_small_and_large_scores() -> None:
    for scale in (1e-3, 30.0):
        spec = AttentionSpec(2, 1, 16, scale, soft_cap=5.0)
        scene = make_scene(spec, (20,), (3,))
        assert (run(BACKEND, scene) - expected(scene)).abs().max() <= 1e-5


class InterleavedCache(PagedKVCache):
    """An engine's own memory, ``[num_slots, 2, H, D]``: keys and values of a slot side by side."""

    def __init__(self, like: PagedKVCache, layers: Sequence[AttentionSpec]) -> None:
        super().__init__(layers, 3, like.page_size, torch.float32, CPU)
        self._own = [torch.stack([like.keys(i), like.values(i)], dim=1) for i in range(len(layers))]
        self._keys = [own[:, 0] for own in self._own]
        self._values = [own[:, 1] for own in self._own]


def awkward(tensors: list[Tensor]) -> list[Tensor]:
    return [t.transpose(0, 2).contiguous().transpose(0, 2) for t in tensors]


@pytest.mark.parametrize("kind", [Kind.TREE, Kind.CHUNKED_PREFILL], ids=lambda kind: kind.value)
def test_strides_of_memory_and_inputs_do_not_matter(kind: Kind) -> None:
    world = build(kind, FEW[:1], 16, torch.float32, CPU, 8)
    kv = InterleavedCache(world.kv, FEW[:1])
    check_values(BACKEND, evolve(world, kv=kv, q=awkward(world.q), k=awkward(world.k), v=awkward(world.v)))


def test_strided_tensors_of_a_batch_are_followed() -> None:
    """As conformance gives them (one mask for all requests) and as a draft's frontier is (a slice of all depths)."""

    def strided(world: World) -> World:
        batch = world.batch
        assert batch.tail_mask is not None
        assert batch.query_depths is not None
        mask = torch.zeros(*batch.tail_mask.shape[:2], 40, dtype=torch.bool)[:, :, 3 : 3 + batch.tail_mask.shape[2]]
        depths = torch.zeros(batch.query_depths.shape[0], 30, dtype=torch.int64)[:, -batch.query_depths.shape[1] :]
        slots, table = torch.zeros(len(batch.slots), 2, dtype=torch.int64)[:, 1], batch.page_table.t().contiguous().t()
        mask.copy_(batch.tail_mask)
        depths.copy_(batch.query_depths)
        slots.copy_(batch.slots)
        return evolve(world, batch=evolve(batch, tail_mask=mask, query_depths=depths, slots=slots, page_table=table))

    old, new = build_pair(Kind.DRAFT_STEP, FEW[:1], CPU)
    check_refresh(BACKEND, strided(old), strided(new))
