"""Shapes that no call can have are refused where they are made, with their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import GraphError
from outrider.types import AttnShape, PhaseShape, RequestCount, TokenCount
from tests.support.planners import uniform_batch


def made(tokens: int, requests: int, attention: AttnShape | None = None) -> PhaseShape:
    return PhaseShape(TokenCount(tokens), RequestCount(requests), attention)


@given(tokens=st.integers(-2, 12), requests=st.integers(-2, 4), queries=st.integers(-2, 4))
def test_tokens_are_requests_times_queries(tokens: int, requests: int, queries: int) -> None:
    attention = AttnShape(queries, 64, 4)
    if min(tokens, requests, queries) >= 0 and tokens == requests * queries:
        assert made(tokens, requests, attention).tokens == tokens
        return
    with pytest.raises(GraphError, match="no call has such a shape"):
        made(tokens, requests, attention)


@given(requests=st.integers(0, 5), queries=st.integers(0, 5))
def test_every_batch_has_a_shape(requests: int, queries: int) -> None:
    shape = PhaseShape.of(uniform_batch(requests, queries))
    assert (shape.tokens, shape.requests) == (requests * queries, requests)


@pytest.mark.parametrize(
    ("tokens", "requests", "attention", "says"),
    [
        (7, 3, AttnShape(1, 100, 8), r"7 tokens of 3 requests with 1 query each; give 3 tokens \(requests × queries\)"),
        (3, 7, AttnShape(1, 100, 8), "3 tokens of 7 requests with 1 query each; give 7 tokens"),
        (-1, 1, None, "-1 tokens; give 0 or more"),
        (4, -2, AttnShape(-2, 100, 8), "-2 requests; .*\n.*-2 queries"),
        (4, 0, None, "4 tokens of 0 requests"),
        (2, 2, AttnShape(1, -100, -8), "-100 positions; .*\n.*-8 pages"),
        (2, 2, AttnShape(1, 100, 8, tail=-1), "-1 tail slots"),
    ],
)
def test_all_that_is_wrong_is_told(tokens: int, requests: int, attention: AttnShape | None, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        made(tokens, requests, attention)


def test_media_have_items_and_no_tokens() -> None:
    assert (PhaseShape.of_media(3).requests, PhaseShape.of_media(3).tokens) == (3, 0)
    with pytest.raises(GraphError, match="-1 requests"):
        PhaseShape.of_media(-1)
