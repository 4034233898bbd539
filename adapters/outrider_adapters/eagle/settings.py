"""A draft's settings from every place where exporters put them; places that disagree are an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from outrider.checkpoint import Config
from outrider.errors import CheckpointError, Problems

__all__ = ["Settings"]

T = TypeVar("T")

_NESTED = ("transformer_layer_config", "model")
_EXTRAS = ("eagle_config", "dflash_config", "speculators_config")


def _flag(config: Config, key: str) -> bool | None:
    return config.get_bool(key, default=False) if config.has(key) else None


class Settings:
    """Reads one config, its nested model section and its extra sections as a single source."""

    def __init__(self, config: Config, problems: Problems) -> None:
        self._problems = problems
        self.root = config
        self.model: Config = config
        """The section with the sizes of the transformer: nested where there is one, else the config itself."""
        places = [("", config)]
        for key in _NESTED:
            section = self._section(config, key)
            if section is not None:
                self.model = section
                places.append((f"{key}.", section))
        self._body: Sequence[tuple[str, Config]] = tuple(places)
        places += [(f"{key}.", section) for key in _EXTRAS if (section := self._section(config, key)) is not None]
        self._everywhere: Sequence[tuple[str, Config]] = tuple(places)

    @property
    def is_nested(self) -> bool:
        """Whether the transformer's sizes stand in a section of their own."""
        return self.model is not self.root

    def in_section(self, section: str, key: str) -> bool:
        """Whether ``key`` stands in the extra section ``section``."""
        return any(label == f"{section}." and config.has(key) for label, config in self._everywhere)

    def whole(self, *keys: str) -> int | None:
        """The whole number at ``keys`` (one meaning, several spellings), wherever it stands."""
        return self._agreed(self._everywhere, keys, Config.get_optional_int)

    def flag(self, *keys: str) -> bool | None:
        """The truth value at ``keys``, wherever it stands; ``None`` where the config is silent."""
        return self._agreed(self._everywhere, keys, _flag)

    def ids(self, *keys: str) -> tuple[int, ...] | None:
        """The list of whole numbers at ``keys``, wherever it stands."""
        return self._agreed(self._everywhere, keys, Config.get_ints)

    def text(self, *keys: str) -> str | None:
        """The text at ``keys``, wherever it stands."""
        return self._agreed(self._everywhere, keys, Config.get_optional_str)

    def stored_dtype(self) -> str | None:
        """The dtype that the draft's own level of the config names; a nested section repeats the target's."""
        for config in (self.root, self.model):
            for key in ("torch_dtype", "dtype"):
                if config.has(key):
                    return config.get_str(key)
        return None

    def is_tied(self) -> bool:
        """``tie_word_embeddings``, by the draft's own level first; a nested section repeats the target's."""
        key = "tie_word_embeddings"
        owner = self.root if self.root.has(key) else self.model
        return owner.get_bool(key, default=False)

    def size(self, key: str, default: int | None = None) -> int:
        """The positive whole number at ``key`` of the transformer; a missing one is noted and read as 1."""
        found = self._agreed(self._body, (key,), Config.get_optional_int)
        if found is None and default is None:
            self._problems.add(f"'{key}' is missing in config.json, expected a whole number")
            return 1
        value = found if found is not None else default or 1
        if value <= 0:
            self._problems.add(f"'{key}' is {value} in config.json, expected at least 1")
            return 1
        return value

    def number(self, key: str, default: float) -> float:
        """The number at ``key`` of the transformer."""
        found = self._agreed(self._body, (key,), Config.get_optional_float)
        return default if found is None else found

    def _section(self, config: Config, key: str) -> Config | None:
        try:
            return config.section(key)
        except CheckpointError as error:
            self._problems.add(str(error))
            return None

    def _agreed(
        self, places: Sequence[tuple[str, Config]], keys: Sequence[str], read: Callable[[Config, str], T | None]
    ) -> T | None:
        first: T | None = None
        where = ""
        for label, config in places:
            for key in keys:
                try:
                    found = read(config, key)
                except CheckpointError as error:
                    self._problems.add(str(error))
                    continue
                if found is None:
                    continue
                if first is None:
                    first, where = found, f"{label}{key}"
                elif found != first:
                    self._problems.add(
                        f"config.json contradicts itself: '{where}' is {_shown(first)} and '{label}{key}' is "
                        f"{_shown(found)}; both are read, so they must agree: correct one of them"
                    )
        return first


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, cast('tuple[object, ...]', value)))}]" if isinstance(value, tuple) else str(value)
