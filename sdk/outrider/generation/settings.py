"""Every setting of a request, named once: Python keywords, command-line flags and JSONL fields are made from this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

import attrs
from attrs import field, frozen

from outrider.errors import InputError, Problems
from outrider.types import SamplingParams

__all__ = ["RequestSettings", "SettingKeywords"]


def _described(help_text: str) -> dict[str, str]:
    return {"help": help_text}


class SettingKeywords(TypedDict, total=False):
    """The keywords of `generate`, for type checkers: the fields of `RequestSettings` (a test holds them together)."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


@frozen(kw_only=True)
class RequestSettings:
    """What one request asks for. Every field is a keyword of `generate`, a flag of ``outrider generate`` and a field of
    an input line; a line overrides a flag.
    """

    max_new_tokens: int = field(default=128, metadata=_described("Most tokens to generate for a prompt."))
    temperature: float = field(default=0.0, metadata=_described("Sampling temperature; 0 is greedy."))
    top_k: int = field(default=0, metadata=_described("Keep the k most probable tokens; 0 keeps all."))
    top_p: float = field(default=1.0, metadata=_described("Keep the smallest set of tokens with this probability."))
    min_p: float = field(default=0.0, metadata=_described("Drop tokens below this share of the most probable one."))
    seed: int = field(default=0, metadata=_described("Seed of the sampling noise; same seed, same text."))

    def override(self, values: Mapping[str, object]) -> RequestSettings:
        """These settings with ``values`` (a JSON object) in place of some; unknown names are for the caller to refuse.

        Raises:
            InputError: a value of the wrong type; all at once.
        """
        changes: dict[str, object] = {}
        with Problems("settings", InputError) as problems:
            for attribute in attrs.fields(RequestSettings):
                name = attribute.name
                if name not in values:
                    continue
                value, expected = _coerced(values[name], attribute.default)
                if expected:
                    problems.add(f"'{name}' is {values[name]!r}, expected {expected}")
                changes[name] = value
        return attrs.evolve(self, **cast("SettingKeywords", changes))

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of all settings."""
        return [attribute.name for attribute in attrs.fields(cls)]

    def check(self) -> None:
        """Refuse values out of range.

        Raises:
            InputError: all faults at once.
        """
        with Problems("settings", InputError) as problems:
            for name, value, allowed, fits in (
                ("max_new_tokens", self.max_new_tokens, "1 or more", self.max_new_tokens >= 1),
                ("temperature", self.temperature, "0 or more", 0.0 <= self.temperature < float("inf")),
                ("top_k", self.top_k, "0 or more", self.top_k >= 0),
                ("top_p", self.top_p, "above 0, to 1", 0.0 < self.top_p <= 1.0),
                ("min_p", self.min_p, "0 to 1", 0.0 <= self.min_p <= 1.0),
                ("seed", self.seed, "0 to 2**63 - 1", 0 <= self.seed < 1 << 63),
            ):
                if not fits:
                    problems.add(f"'{name}' is {value}, allowed is {allowed}")

    def sampling(self) -> SamplingParams:
        """The part that chooses tokens."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )


def _coerced(value: object, like: object) -> tuple[object, str]:
    """``value`` as the type of ``like``, and what was expected where it cannot be."""
    if isinstance(like, bool):
        return (value, "") if isinstance(value, bool) else (like, "true or false")
    if isinstance(value, bool):
        return like, "a number"
    if isinstance(like, int):
        return (value, "") if isinstance(value, int) else (like, "a whole number")
    if isinstance(like, float):
        return (float(value), "") if isinstance(value, (int, float)) else (like, "a number")
    if isinstance(like, tuple):
        items: Sequence[object] = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else [value]
        if all(isinstance(item, str) for item in items):
            return tuple(items), ""
        return cast("object", like), "a string or a list of strings"
    return (value, "") if isinstance(value, str) else (like, "a string")
