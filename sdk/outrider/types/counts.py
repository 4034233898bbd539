"""Counts and ids that must not be mixed up: a verify pass has B·(N+1) tokens of B requests."""

from __future__ import annotations

from typing import NewType

__all__ = ["RequestCount", "RequestId", "RowIndex", "TokenCount", "counted"]

TokenCount = NewType("TokenCount", int)
"""A number of flattened tokens (T)."""

RequestCount = NewType("RequestCount", int)
"""A number of requests (B)."""

RowIndex = NewType("RowIndex", int)
"""The place of a running request in the batch; it may change between rounds."""

RequestId = NewType("RequestId", int)
"""The stable name of a request, given at submission."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """``count`` with its noun, as messages have it: "1 request", "2 requests"; ``many`` where it is not ``one`` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"
