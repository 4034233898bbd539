from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError
from outrider.interfaces import TRASH_PAGE, KVCache
from outrider.kv import PagedKVCache
from outrider.types import AttentionSpec

CPU = torch.device("cpu")
SMALL = AttentionSpec(4, 2, 3, 1.0)
WIDE = AttentionSpec(4, 4, 5, 1.0)
MIXED = [SMALL, WIDE, SMALL, WIDE, WIDE]
PAGE_SIZE, NUM_PAGES = 4, 6
NUM_SLOTS = PAGE_SIZE * NUM_PAGES


def filled(layers: list[AttentionSpec]) -> PagedKVCache:
    """Every plane holds random values that no other plane holds."""
    cache = PagedKVCache(layers, NUM_PAGES, PAGE_SIZE, torch.float32, CPU)
    rng = torch.Generator().manual_seed(0)
    for layer in range(len(layers)):
        cache.keys(layer).normal_(generator=rng)
        cache.values(layer).normal_(generator=rng)
    return cache


@pytest.mark.parametrize("layers", [[SMALL] * 3, MIXED], ids=["equal", "mixed"])
def test_write_changes_exactly_its_slots_of_its_layer(layers: list[AttentionSpec]) -> None:
    cache: KVCache = filled(layers)
    before = [(cache.keys(i).clone(), cache.values(i).clone()) for i in range(len(layers))]
    slots = torch.tensor([9, 22, 8])
    fused = torch.randn(3, 9, layers[1].head_dim)
    heads = layers[1].num_kv_heads
    k, v = fused[:, :heads], fused[:, -heads:]
    cache.write(1, slots, k, v)
    before[1][0][slots] = k
    before[1][1][slots] = v
    for layer, (keys, values) in enumerate(before):
        assert torch.equal(cache.keys(layer), keys)
        assert torch.equal(cache.values(layer), values)


@given(
    moves=st.lists(st.integers(0, NUM_SLOTS - 1), max_size=8).flatmap(
        lambda sources: st.tuples(
            st.just(sources),
            st.lists(
                st.integers(2 * PAGE_SIZE, NUM_SLOTS - 1), min_size=len(sources), max_size=len(sources), unique=True
            ),
            st.lists(st.booleans(), min_size=len(sources), max_size=len(sources)),
        )
    )
)
def test_move_reads_everything_before_it_writes(moves: tuple[list[int], list[int], list[bool]]) -> None:
    """Overlapping sources and destinations, with any number of rows thrown away into one slot of the trash page."""
    sources, destinations, kept = moves
    destinations = [d if keep else TRASH_PAGE * PAGE_SIZE for d, keep in zip(destinations, kept, strict=True)]
    cache = filled(MIXED)
    expected = [(cache.keys(i).clone(), cache.values(i).clone()) for i in range(len(MIXED))]
    old = [(keys.clone(), values.clone()) for keys, values in expected]
    for source, destination in zip(sources, destinations, strict=True):
        for (keys, values), (old_keys, old_values) in zip(expected, old, strict=True):
            keys[destination] = old_keys[source]
            values[destination] = old_values[source]
    cache.move(torch.tensor(sources, dtype=torch.int64), torch.tensor(destinations, dtype=torch.int64))
    readable = torch.tensor([slot for slot in range(NUM_SLOTS) if slot // PAGE_SIZE != TRASH_PAGE])
    for layer, (keys, values) in enumerate(expected):
        assert torch.equal(cache.keys(layer)[readable], keys[readable])
        assert torch.equal(cache.values(layer)[readable], values[readable])


def test_a_move_one_by_one_would_be_seen() -> None:
    """The overlapping shift that a copy in order gets wrong."""
    cache = filled([SMALL])
    keys = cache.keys(0).clone()
    cache.move(torch.tensor([10, 11, 12]), torch.tensor([11, 12, 13]))
    assert torch.equal(cache.keys(0)[11:14], keys[10:13])
    assert not torch.equal(keys[11], keys[10])


def test_storage_of_equal_layers_is_one_tensor_and_fresh_memory_is_zero() -> None:
    cache = PagedKVCache(MIXED, NUM_PAGES, PAGE_SIZE, torch.bfloat16, CPU)
    assert cache.keys(0).untyped_storage().data_ptr() == cache.values(2).untyped_storage().data_ptr()
    assert cache.keys(1).untyped_storage().data_ptr() == cache.values(4).untyped_storage().data_ptr()
    held = {cache.keys(i).untyped_storage().data_ptr(): cache.keys(i).untyped_storage().nbytes() for i in range(5)}
    assert sum(held.values()) == PagedKVCache.bytes_needed(MIXED, NUM_PAGES, PAGE_SIZE, torch.bfloat16)
    for layer, spec in enumerate(MIXED):
        assert cache.keys(layer).shape == (cache.num_slots, spec.num_kv_heads, spec.head_dim)
        assert not cache.keys(layer).any()
        assert not cache.values(layer).any()


def test_every_fault_is_named() -> None:
    with pytest.raises(ConfigurationError, match="3 problems") as caught:
        PagedKVCache([], 2, 0, torch.float32, CPU)
    for part in ("no layers", "2 pages asked, 2 are reserved; give at least 3", "page_size 0"):
        assert part in str(caught.value)
