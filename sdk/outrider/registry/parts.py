"""Finds implementations of the seams: those that installed packages declare, and those registered in code.

A package declares an implementation as an entry point of a group (`TARGETS`, `DRAFTS`, `DRAFTERS`, `VERIFIERS`,
`ATTENTION`, `RUNNERS`, `CONSTRAINTS`, `PAIRS`), for instance::

    [project.entry-points."outrider.targets"]
    mymodel = "my_package.loader:MyModelLoader"

The value is called and gives the implementation: a runner's with `RunnerOptions`, all others without arguments. Nothing
is imported before it is asked for, and one that cannot be imported leaves the others usable. `outrider.registry.loading`
picks the loader for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, ParamSpec, TypeVar, cast

from attrs import frozen

from outrider.errors import ConfigurationError, PluginError
from outrider.graphs import RunnerOptions
from outrider.interfaces import (
    AttnBackend,
    ConstraintLoader,
    DraftLoader,
    GraphRunner,
    ModelFreeDrafter,
    ModelPair,
    TargetLoader,
    VerifierChoice,
)

__all__ = [
    "ATTENTION",
    "CONSTRAINTS",
    "DRAFTERS",
    "DRAFTS",
    "INSTALLED",
    "PAIRS",
    "RUNNERS",
    "TARGETS",
    "VERIFIERS",
    "Group",
    "Registry",
    "attention",
    "constraints",
    "draft_loaders",
    "names",
    "pair",
    "register",
    "runner",
    "target_loaders",
    "verifier",
]

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Group(Generic[F]):
    """One kind of implementation, by what makes it: the factories F that its entry points name.

    ``name`` of the entry-point group, what a member is called in messages, and what its factory ``takes``.
    """

    name: str
    noun: str
    takes: str = "without arguments"


TARGETS: Group[Callable[[], TargetLoader]] = Group("outrider.targets", "target loader")
DRAFTS: Group[Callable[[], DraftLoader]] = Group("outrider.drafts", "draft loader")
DRAFTERS: Group[Callable[[], ModelFreeDrafter]] = Group("outrider.drafters", "drafter")
ATTENTION: Group[Callable[[], AttnBackend]] = Group("outrider.attention", "attention backend")
RUNNERS: Group[Callable[[RunnerOptions], GraphRunner]] = Group("outrider.runners", "runner", "with `RunnerOptions`")
PAIRS: Group[Callable[[], ModelPair]] = Group("outrider.pairs", "model pair")
CONSTRAINTS: Group[Callable[[], ConstraintLoader]] = Group("outrider.constraints", "grammar")
VERIFIERS: Group[Callable[[], VerifierChoice]] = Group("outrider.verifiers", "verifier")


class Registry:
    """Implementations by group and name. Entry points are read once, at the first question."""

    def __init__(self) -> None:
        self._registered: dict[tuple[str, str], Callable[..., object]] = {}
        self._installed: dict[str, dict[str, list[EntryPoint]]] = {}

    def register(self, group: Group[F], name: str, factory: F) -> None:
        """Add ``factory`` as ``name`` without packaging, for embedders and tests.

        Raises:
            ConfigurationError: the name is taken.
        """
        origin = self._origin(group, name)
        if origin:
            raise ConfigurationError(
                f"{group.noun} '{name}' cannot be registered: the name is taken by {origin}; choose another name"
            )
        self._registered[group.name, name] = factory

    def names(self, group: Group[F]) -> tuple[str, ...]:
        """Every known name of ``group``, sorted; imports nothing."""
        registered = {name for kind, name in self._registered if kind == group.name}
        return tuple(sorted(registered | self._entries(group).keys()))

    def create(self, group: Group[Callable[P, T]], name: str, *args: P.args, **kwargs: P.kwargs) -> T:
        """A fresh implementation ``name`` of ``group``; imports the package that provides it.

        Its factory is called with ``args`` and ``kwargs``.

        Raises:
            ConfigurationError: nothing of that name is known; or several packages provide it.
            PluginError: the package cannot be imported, or its factory fails.
        """
        factory = self._factory(group, name)
        try:
            return factory(*args, **kwargs)
        except Exception as error:
            raise PluginError(
                f"{group.noun} '{name}' ({self._origin(group, name)}) cannot be created: {_cause(error)}"
            ) from error

    def members(self, group: Group[Callable[[], T]]) -> Mapping[str, T]:
        """The implementations of ``group`` by name; each is created when it is looked up, anew each time."""
        return _Members(self, group)

    def _entries(self, group: Group[F]) -> dict[str, list[EntryPoint]]:
        """Entry points of ``group`` by name; reading the metadata of every package costs, so it is done once."""
        if group.name not in self._installed:
            found: dict[str, list[EntryPoint]] = {}
            for entry in entry_points(group=group.name):
                found.setdefault(entry.name, []).append(entry)
            self._installed[group.name] = found
        return self._installed[group.name]

    def _origin(self, group: Group[F], name: str) -> str:
        """Who provides ``name``, for messages; empty when nobody does."""
        if (group.name, name) in self._registered:
            return "registered in code"
        return " and ".join(_describe(entry) for entry in self._entries(group).get(name, ()))

    def _factory(self, group: Group[Callable[P, T]], name: str) -> Callable[P, T]:
        registered = self._registered.get((group.name, name))
        loaded: object = registered if registered is not None else self._load(group, name)
        if not callable(loaded):
            raise PluginError(
                f"{group.noun} '{name}' ({self._origin(group, name)}) is of type {type(loaded).__name__}; an entry point "
                f"of '{group.name}' must name something that can be called {group.takes}"
            )
        # An entry point is typed by the group it is declared in, which no type checker sees: the one cast. What is
        # registered in code passed `register`, where the group and the factory are checked against each other.
        return cast("Callable[P, T]", loaded)

    def _load(self, group: Group[F], name: str) -> object:
        entries = self._entries(group).get(name, [])
        if not entries:
            known = ", ".join(f"'{known}'" for known in self.names(group)) or "none"
            raise ConfigurationError(
                f"unknown {group.noun} '{name}'; known are: {known}. Install a package that declares '{name}' as an "
                f"entry point of the group '{group.name}', or call outrider.registry.register before this"
            )
        if len(entries) > 1:
            raise ConfigurationError(
                f"{group.noun} '{name}' is provided {len(entries)} times: by {self._origin(group, name)}; "
                "uninstall all but one"
            )
        try:
            loaded: object = entries[0].load()
        except Exception as error:
            raise PluginError(
                f"{group.noun} '{name}' ({_describe(entries[0])}) cannot be imported: {_cause(error)}. "
                "Repair or uninstall that package"
            ) from error
        return loaded


class _Members(Mapping[str, T]):
    """A mapping that creates its values on look-up."""

    def __init__(self, registry: Registry, group: Group[Callable[[], T]]) -> None:
        self._registry = registry
        self._group = group

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return self._registry.create(self._group, name)

    def __contains__(self, name: object) -> bool:
        return name in self._registry.names(self._group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.names(self._group))

    def __len__(self) -> int:
        return len(self._registry.names(self._group))


def _describe(entry: EntryPoint) -> str:
    package = "an unnamed package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"{package}: {entry.value}"


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


INSTALLED = Registry()
"""The registry that every function of this module asks."""


def register(group: Group[F], name: str, factory: F) -> None:
    """Add ``factory`` to `INSTALLED` as ``name``; see `Registry.register`."""
    INSTALLED.register(group, name, factory)


def names(group: Group[F]) -> tuple[str, ...]:
    """Every known name of ``group``, sorted; imports nothing."""
    return INSTALLED.names(group)


def target_loaders() -> Mapping[str, TargetLoader]:
    """Every target loader by name, each created on look-up."""
    return INSTALLED.members(TARGETS)


def draft_loaders() -> Mapping[str, DraftLoader]:
    """Every draft loader by name, each created on look-up."""
    return INSTALLED.members(DRAFTS)


def attention(name: str) -> AttnBackend:
    """A fresh attention backend ``name``; raises what `Registry.create` does."""
    return INSTALLED.create(ATTENTION, name)


def runner(name: str, options: RunnerOptions | None = None) -> GraphRunner:
    """A fresh runner ``name``, made as ``options`` say; raises what `Registry.create` does."""
    return INSTALLED.create(RUNNERS, name, RunnerOptions() if options is None else options)


def pair(name: str) -> ModelPair:
    """The model pair ``name``; raises what `Registry.create` does."""
    return INSTALLED.create(PAIRS, name)


def constraints(name: str) -> ConstraintLoader:
    """What makes grammar constraints, by ``name``; raises what `Registry.create` does."""
    return INSTALLED.create(CONSTRAINTS, name)


def verifier(name: str) -> VerifierChoice:
    """The verifier ``name``; raises what `Registry.create` does."""
    return INSTALLED.create(VERIFIERS, name)
