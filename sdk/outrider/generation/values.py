"""Readers of setting values: each turns a JSON value into its own type, or raises ValueError with what it expects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from outrider.types import HiddenTap

__all__ = [
    "choice",
    "id_lists",
    "ids",
    "ids_or_path",
    "integer",
    "items",
    "json_object",
    "number",
    "switch",
    "taps",
    "text",
    "texts",
    "token_bias",
]

FINAL_NORM = str(HiddenTap.final_norm())


def integer(value: object) -> int:
    """A whole number; truth values are none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("a whole number")


def number(value: object) -> float:
    """A number; truth values are none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number beyond every float: out of every range as well
            return math.inf if value > 0 else -math.inf
    raise ValueError("a number")


def switch(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def text(value: object) -> str:
    """A string."""
    if isinstance(value, str):
        return value
    raise ValueError("a string")


def choice(*allowed: str) -> Callable[[object], str]:
    """A reader of strings that takes the ``allowed`` ones only."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise ValueError(f"one of {', '.join(allowed)}")

    return read


def texts(value: object) -> tuple[str, ...]:
    """Strings; one alone counts as a list of one."""
    found = [value] if isinstance(value, str) else _sequence(value)
    if found is None or not all(isinstance(each, str) for each in found):
        raise ValueError("a string or a list of strings")
    return tuple(cast("Sequence[str]", found))


def ids(value: object) -> tuple[int, ...]:
    """Token ids."""
    found = _sequence(value)
    if found is None:
        raise ValueError("a list of token ids")
    try:
        return tuple(integer(each) for each in found)
    except ValueError as error:
        raise ValueError("a list of token ids") from error


def id_lists(value: object) -> tuple[tuple[int, ...], ...]:
    """Lists of token ids; one list of ids alone counts as a list of one."""
    found = _sequence(value)
    if found is None:
        raise ValueError("lists of token ids")
    if found and all(isinstance(each, int) for each in found):
        return (ids(found),)
    return tuple(ids(each) for each in found)


def token_bias(value: object) -> Mapping[int, float]:
    """Numbers by token id; JSON writes the ids as strings."""
    expected = "an object of numbers by token id"
    if not isinstance(value, Mapping):
        raise ValueError(expected)
    try:
        return {int(str(key)): number(each) for key, each in cast("Mapping[object, object]", value).items()}
    except ValueError as error:
        raise ValueError(expected) from error


def json_object(value: object) -> Mapping[str, object]:
    """A JSON object."""
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) for key in cast("Mapping[object, object]", value)
    ):
        raise ValueError("a JSON object")
    return cast("Mapping[str, object]", value)


def ids_or_path(value: object) -> tuple[int, ...] | Path:
    """Token ids, or the file that lists them."""
    if isinstance(value, (str, Path)):
        try:
            return Path(value).expanduser()
        except RuntimeError as error:  # there is no such user
            raise ValueError("the path of a file that holds token ids") from error
    try:
        return ids(value)
    except ValueError as error:
        raise ValueError("a list of token ids, or the file that holds one") from error


def taps(value: object) -> tuple[HiddenTap, ...]:
    """Points of the target's residual stream: boundaries by number, or ``final_norm``."""
    expected = f"a list of boundaries (0, 1, …) and '{FINAL_NORM}'"
    found = _sequence(value)
    if found is None:
        raise ValueError(expected)
    read: list[HiddenTap] = []
    for each in found:
        if isinstance(each, HiddenTap):
            read.append(each)
        elif each == FINAL_NORM:
            read.append(HiddenTap.final_norm())
        elif isinstance(each, int) and not isinstance(each, bool) and each >= 0:
            read.append(HiddenTap.at(each))
        else:
            raise ValueError(expected)
    return tuple(read)


def items(lists: Iterable[Iterable[int]]) -> Iterable[int]:
    """Every item of every list."""
    return (item for each in lists for item in each)


def _sequence(value: object) -> Sequence[object] | None:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return cast("Sequence[object]", value)
    return None
