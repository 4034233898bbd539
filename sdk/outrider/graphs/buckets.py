"""`Buckets`: the counts that graphs are captured at; a call is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from outrider.errors import ConfigurationError, Problems
from outrider.types import RefusalReason, Refused, RequestCount, TokenCount
from outrider.types.counts import counted

__all__ = ["Buckets", "default_counts", "length_bucket", "length_buckets", "request_buckets", "token_buckets"]

C = TypeVar("C", bound=int)

_SHORTEST = 128
"""Lengths are rounded up to this, then to powers of two: few graphs, and at most twice the attention of the real length."""

_FINE = 256
"""Up to here buckets of tokens are spaced by a third, from here on evenly: long prompts are bound by arithmetic, so padding
them costs what it adds."""

_TOKEN_STEP = 128

_MOST = 1 << 20
"""No device runs that many rows in one pass; a larger bucket is a slip (bytes, or slots of a cache)."""


class Buckets(Generic[C]):
    """Ascending counts of one unit. `token_buckets` and `request_buckets` make them, and keep the units apart."""

    def __init__(self, counts: Iterable[C], unit: Literal["tokens", "requests"]) -> None:
        """Keep ``counts``.

        Raises:
            ConfigurationError: none, one below 1, one above 2²⁰, twice the same, or not ascending; all faults at once.
        """
        self._counts = tuple(counts)
        self._unit = unit
        with Problems(f"buckets of {unit} {list(self._counts)}", ConfigurationError) as problems:
            if not self._counts:
                problems.add("there is none; give at least one, or leave the choice to the default")
            small = [count for count in self._counts if count < 1]
            if small:
                problems.add(f"{small} are below 1; leave them out")
            large = [count for count in self._counts if count > _MOST]
            if large:
                problems.add(f"{large} are above {_MOST}, the most a bucket may hold; give counts of {unit}")
            twice = sorted({count for count in self._counts if self._counts.count(count) > 1})
            if twice:
                problems.add(f"{twice} are there more than once; give each once")
            if any(one > two for one, two in zip(self._counts, self._counts[1:], strict=False)):
                problems.add(f"they are not in ascending order; give {sorted(set(self._counts))}")

    @property
    def counts(self) -> tuple[C, ...]:
        """Every bucket, ascending."""
        return self._counts

    @property
    def largest(self) -> C:
        """The most that is served."""
        return self._counts[-1]

    def pick(self, count: C) -> C | Refused:
        """The smallest bucket that holds ``count``, or why there is none. A function of the count alone."""
        place = bisect_left(self._counts, count)
        if place < len(self._counts):
            return self._counts[place]
        return Refused(
            RefusalReason.TOO_LARGE,
            f"{counted(count, self._unit[:-1])}, the largest bucket holds {self.largest}",
            f"give the runner a bucket of {counted(count, self._unit[:-1])} or more, or run fewer at once",
        )


def default_counts(largest: int) -> tuple[int, ...]:
    """Powers of two and their halves between (1, 2, 3, 4, 6, 8, 12, 16, 24, …) below ``largest``, and ``largest`` itself.

    At most a third of a padded call is padding, whatever its size, and the number of graphs grows with the logarithm of
    the largest one.
    """
    counts = {largest}
    power = 1
    while power < largest:
        counts |= {count for count in (power, power + power // 2) if count < largest}
        power *= 2
    return tuple(sorted(counts))


def token_buckets(counts: Iterable[int] | None = None, largest: int = 2048) -> Buckets[TokenCount]:
    """Buckets of flattened tokens: ``counts``, or by default `default_counts` up to 256, then every 128 up to ``largest``.

    Raises what `Buckets` does.
    """
    if counts is None:
        fine = default_counts(min(largest, _FINE))
        counts = sorted({*fine, *range(_FINE, largest, _TOKEN_STEP), largest})
    return Buckets(map(TokenCount, counts), "tokens")


def request_buckets(counts: Iterable[int] | None = None, largest: int = 64) -> Buckets[RequestCount]:
    """Buckets of requests, each with all of its tokens: ``counts``, or `default_counts` up to ``largest``.

    Raises what `Buckets` does.
    """
    chosen = default_counts(largest) if counts is None else counts
    return Buckets(map(RequestCount, chosen), "requests")


def length_bucket(length: int, most: int) -> int:
    """The bound that a graph for sequences of up to ``length`` positions is captured with: a power of two, at most ``most``."""
    return max(min(max(_SHORTEST, 1 << (length - 1).bit_length()), most), length)


def length_buckets(most: int) -> tuple[int, ...]:
    """Every bound that `length_bucket` gives for lengths up to ``most``, ascending."""
    found = {length_bucket(1, most), most}
    length = _SHORTEST
    while length < most:
        found.add(length)
        length *= 2
    return tuple(sorted(found))
