"""Tables of options: attrs classes whose fields say how they are read, so that keywords and flags are named once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, cast

import attrs
from attrs import AttrsInstance

from outrider.errors import OutriderError, Problems

__all__ = [
    "FlagKind",
    "Reader",
    "names_with_flags",
    "option",
    "option_flag",
    "option_help",
    "read_options",
    "unknown_names",
]

Reader = Callable[[object], object]
"""Turns a JSON value into a field's own, or raises ValueError with what it expects."""

FlagKind = Literal["value", "json file", "path", "list", "none"]
"""What a field's flag takes: a value of the field's type, a file that holds the value as JSON, a path, numbers or words
with commas between them (or a JSON list), or ``none``: there is no flag."""


def option(
    read: Reader, help_text: str, *, optional: bool = False, flag: FlagKind = "value", default: str | None = None
) -> dict[str, object]:
    """What a field says of itself. ``optional``: null is allowed. ``default``: what a default of ``None`` comes to."""
    return {"read": read, "help": help_text, "optional": optional, "flag": flag, "default": default}


def option_flag(attribute: attrs.Attribute[object]) -> FlagKind:
    """What the flag of a field takes."""
    return cast("FlagKind", attribute.metadata["flag"])


def names_with_flags(table: type[AttrsInstance]) -> list[str]:
    """The fields of ``table`` that a shell user can give."""
    return [attribute.name for attribute in attrs.fields(table) if option_flag(attribute) != "none"]


def option_help(attribute: attrs.Attribute[object], default: object) -> str:
    """The help of a field and its default, if there is one to tell."""
    shown = attribute.metadata["default"] if default is None else default
    text = str(attribute.metadata["help"])
    return text if shown is None or shown in ((), {}) else f"{text}  [default: {shown}]"


def unknown_names(what: str, names: Iterable[str], known: Sequence[str]) -> str | None:
    """What to say of those of ``names`` that are not ``known``, with the name that was likely meant; ``None``: all are."""
    unknown = sorted(set(names).difference(known))
    if not unknown:
        return None
    near = [get_close_matches(name, known, n=1) for name in unknown]
    shown = [f"{name} ({found[0]}?)" if found else name for name, found in zip(unknown, near, strict=True)]
    return f"unknown {what} {', '.join(shown)}; known are {', '.join(known)}"


def read_options(
    table: type[AttrsInstance], values: Mapping[str, object], title: str, error: type[OutriderError]
) -> dict[str, object]:
    """``values`` as the fields of ``table`` read them; names that are no field are for the caller to refuse.

    Raises:
        OutriderError: ``error``, for values of the wrong type; all at once.
    """
    changes: dict[str, object] = {}
    with Problems(title, error) as problems:
        for attribute in attrs.fields(table):
            name = attribute.name
            if name not in values:
                continue
            value = values[name]
            if value is None and attribute.metadata["optional"]:
                changes[name] = None
                continue
            try:
                changes[name] = cast("Reader", attribute.metadata["read"])(value)
            except ValueError as wrong:
                problems.add(f"'{name}' is {value!r}, expected {wrong}")
    return changes
