"""`Config`: a JSON object from a checkpoint, read by key and type, with errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from attrs import frozen

from outrider.errors import CheckpointError

__all__ = ["Config"]


@frozen
class Config:
    """One JSON object: ``values`` by key, ``where`` names it in errors (file, and section if nested).

    A key that is absent and a key that is ``null`` are the same. Each reader checks the type; a wrong one raises
    `CheckpointError` with the key, what was found and what is expected.
    """

    where: str
    values: Mapping[str, object]

    @classmethod
    def read(cls, path: Path) -> Config:
        """The object in the JSON file ``path``."""
        try:
            loaded: object = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
            raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
        if not isinstance(loaded, dict):
            raise CheckpointError(f"{path}: holds a {type(loaded).__name__}, expected a JSON object")
        return cls(str(path), cast("dict[str, object]", loaded))

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def get_int(self, key: str, default: int | None = None) -> int:
        """The whole number at ``key``; ``default`` where it is absent and a default is given."""
        found = self.get_optional_int(key)
        if found is not None:
            return found
        if default is None:
            raise self._missing(key, "a whole number")
        return default

    def get_optional_int(self, key: str) -> int | None:
        """The whole number at ``key``, or ``None``."""
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer():
            return round(value)
        raise self._wrong(key, value, "a whole number")

    def get_float(self, key: str, default: float | None = None) -> float:
        """The number at ``key``; ``default`` where it is absent and a default is given."""
        found = self.get_optional_float(key)
        if found is not None:
            return found
        if default is None:
            raise self._missing(key, "a number")
        return default

    def get_optional_float(self, key: str) -> float | None:
        """The number at ``key``, or ``None``."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:
                raise self._wrong(key, value, "a number") from error
        raise self._wrong(key, value, "a number")

    def get_bool(self, key: str, default: bool) -> bool:
        """The truth value at ``key``, or ``default``."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._wrong(key, value, "true or false")

    def get_str(self, key: str, default: str | None = None) -> str:
        """The text at ``key``; ``default`` where it is absent and a default is given."""
        value = self.values.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            raise self._wrong(key, value, "a string")
        if default is None:
            raise self._missing(key, "a string")
        return default

    def get_optional_str(self, key: str) -> str | None:
        """The text at ``key``, or ``None``."""
        return self.get_str(key) if self.has(key) else None

    def get_ints(self, key: str) -> tuple[int, ...] | None:
        """The list of whole numbers at ``key`` (a single number counts as a list of one), or ``None``."""
        value = self.values.get(key)
        if value is None:
            return None
        items = _as_list(value)
        if any(not isinstance(item, int) or isinstance(item, bool) for item in items):
            raise self._wrong(key, items, "a list of whole numbers")
        return tuple(cast("list[int]", items))

    def get_strs(self, key: str) -> tuple[str, ...]:
        """The list of strings at ``key``; empty where absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        items = _as_list(value)
        if any(not isinstance(item, str) for item in items):
            raise self._wrong(key, items, "a list of strings")
        return tuple(cast("list[str]", items))

    def section(self, key: str) -> Config | None:
        """The nested object at ``key``, or ``None``."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Config(f"{self.where}: {key}", cast("dict[str, object]", value))

    def _missing(self, key: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: '{key}' is missing, expected {expected}")

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: '{key}' is {value!r}, expected {expected}")


def _as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]
