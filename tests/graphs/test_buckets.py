"""Buckets hold what they are asked for with little padding, keep units apart, and refuse what makes no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError
from outrider.graphs import default_counts, request_buckets, token_buckets
from outrider.types import RefusalReason, Refused, RequestCount, TokenCount


@given(largest=st.integers(1, 5000), count=st.integers(1, 5000))
def test_the_default_wastes_a_third_at_most(largest: int, count: int) -> None:
    buckets = token_buckets(largest=largest)
    picked = buckets.pick(TokenCount(count))
    if count > largest:
        assert isinstance(picked, Refused)
        return
    assert not isinstance(picked, Refused)
    assert picked >= count
    assert (picked - count) * 3 <= picked
    assert buckets.largest == largest


def test_the_default_grows_with_the_logarithm() -> None:
    assert default_counts(24) == (1, 2, 3, 4, 6, 8, 12, 16, 24)
    assert len(default_counts(1 << 16)) == 32


@given(counts=st.sets(st.integers(1, 300), min_size=1), count=st.integers(1, 300))
def test_the_smallest_that_holds_is_picked(counts: set[int], count: int) -> None:
    picked = request_buckets(sorted(counts)).pick(RequestCount(count))
    expected = min((each for each in counts if each >= count), default=None)
    assert (None if isinstance(picked, Refused) else picked) == expected


def test_what_is_too_large_is_refused_with_numbers_and_a_remedy() -> None:
    refused = token_buckets([2, 4]).pick(TokenCount(5))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.TOO_LARGE
    assert refused.numbers == "5 tokens, the largest bucket holds 4"
    assert "bucket of 5 tokens" in refused.remedy


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([], "there is none"),
        ([2, 1], r"not in ascending order; give \[1, 2\]"),
        ([1, 2, 2], r"\[2\] are there more than once"),
        ([0, 1], r"\[0\] are below 1"),
        ([-3, 1], r"\[-3\] are below 1"),
        ([1, 1 << 30], "are above 1048576"),
    ],
)
def test_bad_buckets_are_refused(counts: list[int], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        token_buckets(counts)
    with pytest.raises(ConfigurationError, match="buckets of requests"):
        request_buckets(counts)


def test_all_faults_at_once() -> None:
    with pytest.raises(ConfigurationError, match="4 problems") as caught:
        token_buckets([4, 4, 0, 1 << 30])
    assert all(said in str(caught.value) for said in ("below 1", "above", "more than once", "ascending"))
