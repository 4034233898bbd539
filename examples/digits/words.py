"""Numbers and lists of numbers in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["DIGITS", "listed", "number"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def number(value: int) -> str:
    """``value`` from 0 to 99 in words."""
    if value < 20:
        return (*DIGITS, *_TEENS)[value]
    tens, ones = _TENS[value // 10 - 2], value % 10
    return f"{tens}-{DIGITS[ones]}" if ones else tens


def joined(parts: Sequence[str]) -> str:
    """``parts`` with commas and an "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def listed(values: Iterable[int]) -> str:
    """Numbers in words, joined: ``three, seven and one``."""
    return joined([number(value) for value in values])
