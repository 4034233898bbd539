"""What is particular to the SDPA backend: its two paths agree, blocks, foreign storage, and refusals."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import ConfigurationError
from outrider.kv import PagedKVCache
from outrider.types import AttnBatch
from outrider_backends.sdpa import SdpaBackend, exact, ragged
from outrider_backends.sdpa.ragged import RaggedPlan
from outrider_backends.sdpa.uniform import UniformPlan
from tests.backends.attention_cases import Kind, World, build, layers_for
from tests.backends.attention_checks import attend_all, check_values
from tests.backends.plain_batches import CPU, PLAIN, batch_of, cache

LAYERS = layers_for(SdpaBackend().capabilities, CPU)


def world_of(kind: Kind, seed: int = 1, page_size: int = 16) -> World:
    return build(kind, LAYERS, page_size, torch.float32, CPU, seed)


@pytest.mark.parametrize("kind", [Kind.EQUAL_PREFILL, Kind.PADDED_PREFILL], ids=lambda kind: kind.value)
def test_both_paths_agree(kind: Kind) -> None:
    world = world_of(kind)
    unknown = evolve(world, batch=evolve(world.batch, host_prefix_lens=None))
    backend = SdpaBackend()
    assert isinstance(backend.plan(world.batch, world.layers, world.kv), RaggedPlan)
    assert isinstance(backend.plan(unknown.batch, world.layers, world.kv), UniformPlan)
    check_values(backend, unknown)
    for one, other in zip(attend_all(backend, world), attend_all(backend, unknown), strict=True):
        assert (one - other)[world.real].abs().max() <= 1e-5


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.TREE, Kind.CHAIN, Kind.CHUNKED_PREFILL], ids=lambda k: k.value)
def test_sdpa_equals_attention_written_out(kind: Kind) -> None:
    """The same layer through PyTorch's kernel and, with a soft cap so high that it does nothing, written out."""
    world = build(kind, (PLAIN,), 16, torch.float32, CPU, 2)
    capped = evolve(world, layers=(evolve(PLAIN, soft_cap=1e4),))
    (kernel,), (written,) = attend_all(SdpaBackend(), world), attend_all(SdpaBackend(), capped)
    assert (kernel - written)[world.real].abs().max() <= 1e-5


@pytest.mark.parametrize("entries", [1, 700, 4000])
@pytest.mark.parametrize("kind", [Kind.RAGGED_PREFILL, Kind.CHUNKED_PREFILL], ids=lambda kind: kind.value)
def test_any_block_size_gives_the_same(kind: Kind, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "_BLOCK_SCORES", entries)
    check_values(SdpaBackend(), world_of(kind))


def test_long_prompts_never_build_a_square_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunked prefill of 3000 tokens on 3000: every mask stays within the budget, windowed ones within the window."""
    sizes: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float = 1.0
    ) -> Tensor:
        sizes.append(0 if attn_mask is None else attn_mask.numel())
        return kernel(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(ragged, "_BLOCK_SCORES", 1 << 18)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    layers = [PLAIN, evolve(PLAIN, window=100)]
    kv = PagedKVCache(layers, 402, 16, torch.float32, CPU)
    batch = AttnBatch(
        query_lens=(3000,),
        prefix_lens=torch.tensor([3000]),
        page_table=torch.arange(2, 402)[None],
        slots=torch.arange(32 + 3000, 32 + 6000),
        max_length=6000,
        host_prefix_lens=(3000,),
    )
    plan = SdpaBackend().plan(batch, layers, kv)
    q, k = torch.randn(3000, 4, 16), torch.randn(3000, 2, 16)
    for layer, most in ((0, 1 << 18), (1, 100 * 200)):
        sizes.clear()
        plan.attend(layer, q, k, k)
        assert 0 < max(sizes) <= most
    sizes.clear()
    first = evolve(
        batch, query_lens=(3000,), host_prefix_lens=(0,), prefix_lens=torch.tensor([0]), slots=torch.arange(32, 3032)
    )
    SdpaBackend().plan(first, layers, kv).attend(0, q, k, k)
    assert sizes == [0]


class InterleavedCache(PagedKVCache):
    """An engine's own memory, ``[num_slots, 2, H, D]``: keys and values of a slot side by side."""

    def __init__(self, like: PagedKVCache, num_layers: int) -> None:
        super().__init__([PLAIN], 3, like.page_size, torch.float32, CPU)
        self._own = [torch.stack([like.keys(i), like.values(i)], dim=1) for i in range(num_layers)]
        self._keys = [own[:, 0] for own in self._own]
        self._values = [own[:, 1] for own in self._own]


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.TREE, Kind.CHUNKED_PREFILL], ids=lambda kind: kind.value)
def test_strided_storage(kind: Kind) -> None:
    world = world_of(kind)
    check_values(SdpaBackend(), evolve(world, kv=InterleavedCache(world.kv, len(LAYERS))))


def test_strided_storage_of_unusable_strides_is_refused() -> None:
    kv = cache()

    class Transposed(PagedKVCache):
        def keys(self, layer: int) -> Tensor:
            return super().keys(layer).transpose(1, 2).contiguous().transpose(1, 2)

    with pytest.raises(ConfigurationError, match="contiguous head vectors"):
        SdpaBackend().plan(batch_of((1,)), [PLAIN], Transposed([PLAIN], 4, 16, torch.float32, CPU))
    SdpaBackend().plan(batch_of((1,)), [PLAIN], kv)


def test_transposed_queries_and_keys() -> None:
    """No stride of q, k or v is relied on, not even of the last axis."""
    for kind in (Kind.DECODE, Kind.TREE, Kind.RAGGED_PREFILL):
        world = world_of(kind)

        def awkward(tensors: list[Tensor]) -> list[Tensor]:
            return [t.transpose(0, 2).contiguous().transpose(0, 2) for t in tensors]

        check_values(SdpaBackend(), evolve(world, q=awkward(world.q), k=awkward(world.k), v=awkward(world.v)))


def test_batches_that_cannot_be_planned_name_every_fault() -> None:
    with pytest.raises(ConfigurationError, match="known to the host"):
        SdpaBackend().plan(batch_of((1, 3)), [PLAIN], cache())
    tree = evolve(batch_of((1, 3), known=True), tail_mask=torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(ConfigurationError, match="tail mask needs equally many queries"):
        SdpaBackend().plan(tree, [PLAIN], cache())
    wrong = evolve(
        batch_of((2, 2)),
        slots=torch.zeros(3, dtype=torch.int64),
        prefix_lens=torch.zeros(1, dtype=torch.int64),
        host_prefix_lens=(0,),
    )
    with pytest.raises(ConfigurationError, match="3 problems") as caught:
        SdpaBackend().plan(wrong, [PLAIN], cache())
    assert "3 slots" in str(caught.value)
    assert "1 by host_prefix_lens" in str(caught.value)
    with pytest.raises(ConfigurationError, match="33 positions, the page table holds 32"):
        SdpaBackend().plan(batch_of((33, 1), known=True), [PLAIN], cache())


@pytest.mark.parametrize("query_lens", [(), (0,), (0, 0)])
def test_no_queries(query_lens: tuple[int, ...]) -> None:
    plan = SdpaBackend().plan(batch_of(query_lens), [PLAIN], cache())
    empty = torch.zeros(0, 4, 16)
    assert torch.equal(plan.attend(0, empty, empty[:, :2], empty[:, :2]), empty)


def test_request_without_queries_among_others() -> None:
    plan = SdpaBackend().plan(batch_of((0, 2, 0), known=True), [PLAIN], cache())
    q, k = torch.randn(2, 4, 16), torch.randn(2, 2, 16)
    assert torch.equal(plan.attend(0, q, k, k)[0], torch.zeros(4, 16))  # padding slots: reads zeros only


def test_masked_score_leaves_no_weight_and_no_nan() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        hidden = torch.tensor(exact.masked_score(dtype), dtype=dtype)
        scores = torch.stack([hidden + torch.tensor(60.0, dtype=dtype), torch.tensor(-60.0, dtype=dtype)]).float()
        assert torch.equal(torch.softmax(scores, 0), torch.tensor([0.0, 1.0]))
        assert bool(torch.softmax(torch.stack([hidden, hidden]).float(), 0).isfinite().all())
