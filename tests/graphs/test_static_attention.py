"""A static batch says what the call's batch says; padding requests neither read nor change what others read."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from outrider.errors import GraphError
from outrider.graphs import StaticAttention
from outrider.interfaces import NULL_PAGE, TRASH_PAGE
from outrider.types import AttnBatch, AttnShape, PhaseShape, RequestCount, TokenCount
from tests.support.planners import uniform_batch
from tests.support.toy_target import CPU

PAGE_SIZE = 4


def capacity(requests: int, shape: AttnShape) -> PhaseShape:
    return PhaseShape(TokenCount(requests * shape.queries), RequestCount(requests), shape)


def tree_batch(requests: int) -> AttnBatch:
    queries, tail = 2, 3
    return evolve(
        uniform_batch(requests, queries),
        prefix_lens=torch.arange(1, requests + 1),
        page_table=torch.arange(requests * 16).view(requests, 16),
        slots=torch.arange(8, 8 + requests * queries),
        tail_mask=torch.rand(requests, queries, tail) < 0.5,
        query_depths=torch.ones(queries, dtype=torch.int64).expand(requests, -1),
        tail_depths=torch.arange(tail).expand(requests, -1),
    )


def test_the_real_requests_are_copied_and_the_rest_is_harmless() -> None:
    batch = tree_batch(2)
    shape = AttnShape(2, 64, 16, 3, depths=True)
    assert batch.shape == shape
    static = StaticAttention(capacity(4, shape), PAGE_SIZE, CPU)
    static.fill(tree_batch(4))  # what is stale must not stay
    static.fill(batch)
    own = static.batch
    assert own.query_lens == (2, 2, 2, 2)
    for name in ("prefix_lens", "page_table", "tail_mask", "query_depths", "tail_depths"):
        source = {
            "prefix_lens": batch.prefix_lens,
            "page_table": batch.page_table,
            "tail_mask": batch.tail_mask,
            "query_depths": batch.query_depths,
            "tail_depths": batch.tail_depths,
        }[name]
        assert source is not None
        assert torch.equal(static.tensors[name][:2], source)
    assert torch.equal(own.slots[:4], batch.slots)
    assert torch.equal(own.slots[4:], torch.full((4,), TRASH_PAGE * PAGE_SIZE))
    assert torch.equal(own.page_table[2:], torch.full((2, 16), NULL_PAGE))
    assert torch.equal(own.prefix_lens[2:], torch.zeros(2, dtype=torch.int64))


def test_varied_padding_still_writes_to_trash_and_reads_nothing() -> None:
    static = StaticAttention(capacity(2, AttnShape(2, 64, 16)), PAGE_SIZE, CPU)
    static.fill(uniform_batch(2, 2))
    static.vary()
    assert torch.equal(static.batch.prefix_lens, torch.ones(2, dtype=torch.int64))
    assert (static.batch.page_table == NULL_PAGE).all()
    assert (static.batch.slots == TRASH_PAGE * PAGE_SIZE).all()


def test_another_layout_is_refused() -> None:
    static = StaticAttention(capacity(2, AttnShape(2, 64, 16)), PAGE_SIZE, CPU)
    with pytest.raises(GraphError, match="up to 65 positions, the captured attention serves 64"):
        static.fill(uniform_batch(2, 2, max_length=65))
    with pytest.raises(GraphError, match=r"'slots' is \[2\].*declared is \[6\]|a call of"):
        static.fill(evolve(uniform_batch(3, 2), slots=torch.zeros(2, dtype=torch.int64)))
    with pytest.raises(GraphError, match="'tail_mask' was given"):
        static.fill(tree_batch(2))
    with pytest.raises(GraphError, match=r"'page_table' is \[2, 8\]"):
        static.fill(uniform_batch(2, 2, pages=8))


def test_sizes_that_are_no_batch_are_refused() -> None:
    with pytest.raises(GraphError, match="4 tokens, 2 requests cannot be captured with their attention"):
        StaticAttention(PhaseShape(TokenCount(4), RequestCount(2)), PAGE_SIZE, CPU)
