"""Finding implementations: lazily, by name, with faults that name their package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import cast

import pytest

from outrider.errors import ConfigurationError, PluginError
from outrider.graphs import RunnerOptions, request_buckets, token_buckets
from outrider.interfaces import ModelPair
from outrider.registry import (
    ATTENTION,
    CONSTRAINTS,
    DRAFTERS,
    DRAFTS,
    PAIRS,
    RUNNERS,
    TARGETS,
    VERIFIERS,
    Group,
    Registry,
    names,
    parts,
)
from outrider.types import GraphSizes, Role
from outrider_backends.eager import EagerRunner
from tests.registry.fakes import FakeTargets, install

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
GROUPS = cast(
    "tuple[Group[Callable[..., object]], ...]",
    (TARGETS, DRAFTS, DRAFTERS, VERIFIERS, ATTENTION, RUNNERS, PAIRS, CONSTRAINTS),
)

PAIR_MODULE = """
from pathlib import Path
from outrider.graphs import RunnerOptions, request_buckets, token_buckets
from outrider.interfaces import ModelPair
def make():
    return ModelPair(Path("target"), (Path("draft"),))
"""


def declared() -> dict[str, dict[str, str]]:
    """The entry points that pyproject.toml declares."""
    project = cast("dict[str, object]", tomllib.loads(PYPROJECT.read_text())["project"])
    return cast("dict[str, dict[str, str]]", project["entry-points"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_every_declared_group_is_one_the_registry_knows() -> None:
    assert set(declared()) == {group.name for group in GROUPS}


def test_what_pyproject_declares_is_what_is_installed() -> None:
    """An editable install keeps the entry points of the day it was made."""
    installed: dict[str, dict[str, str]] = {}
    for entry in distribution("outrider").entry_points:
        if entry.group.startswith("outrider."):
            installed.setdefault(entry.group, {})[entry.name] = entry.value
    assert installed == declared(), "pyproject.toml changed since the install: run pip install --no-deps -e ."


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: cast("Group[Callable[..., object]]", group).name)
def test_every_declared_part_is_found_and_can_be_created(group: Group[Callable[..., object]]) -> None:
    registry = Registry()
    assert set(declared()[group.name]) <= set(registry.names(group))
    arguments = (RunnerOptions(),) if group.name == RUNNERS.name else ()
    for name in declared()[group.name]:
        registry.create(group, name, *arguments)


def test_names_import_nothing_of_what_they_name() -> None:
    code = (
        "import sys; from outrider import registry as r\n"
        "groups = (r.TARGETS, r.DRAFTS, r.ATTENTION, r.RUNNERS, r.PAIRS)\n"
        "assert all(r.names(g) for g in groups)\n"
        "assert len(r.target_loaders()) == len(r.names(r.TARGETS))\n"
        "print([m for m in sys.modules if m.startswith(('outrider_', 'transformers'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_is_not_ours_stands_on_the_same_footing(site: Path) -> None:
    install(
        site, "their-pair", "2.5", {"outrider.pairs": {"theirs": "their_pair_ok:make"}}, {"their_pair_ok": PAIR_MODULE}
    )
    registry = Registry()
    assert "theirs" in registry.names(PAIRS)
    assert registry.create(PAIRS, "theirs") == ModelPair(Path("target"), (Path("draft"),))


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_way_to_add_one(site: Path) -> None:
    install(site, "their-pair", "2.5", {"outrider.pairs": {"theirs": "nowhere:make"}}, {})
    with pytest.raises(ConfigurationError, match=r"unknown model pair 'big'.*'theirs'.*'outrider\.pairs'.*register"):
        Registry().create(PAIRS, "big")


def test_a_group_without_members_says_so() -> None:
    group: Group[Callable[[], ModelPair]] = Group("outrider.nothing-has-this", "thing")
    assert Registry().names(group) == ()
    with pytest.raises(ConfigurationError, match="unknown thing 'x'; known are: none"):
        Registry().create(group, "x")


@pytest.mark.parametrize(
    ("module", "source", "value", "cause"),
    [
        ("their_missing", None, "their_missing:make", "ModuleNotFoundError: No module named 'their_missing'"),
        ("their_needs", "import no_such_dependency", "their_needs:make", "No module named 'no_such_dependency'"),
        ("their_syntax", "def make(:", "their_syntax:make", "SyntaxError"),
        ("their_raises", "raise RuntimeError('no driver')", "their_raises:make", "RuntimeError: no driver"),
        ("their_name", "def made(): ...", "their_name:make", "AttributeError"),
        ("their_value", "make = 3", "their_value:make", "is of type int; .* without arguments"),
        ("their_call", "def make(): raise OSError('disk')", "their_call:make", "cannot be created: OSError: disk"),
        ("their_args", "def make(device): ...", "their_args:make", "cannot be created: TypeError"),
    ],
)
def test_a_broken_package_is_named_with_its_cause_and_the_others_work(
    site: Path, module: str, source: str | None, value: str, cause: str
) -> None:
    entries = {"outrider.pairs": {"bad": value, "good": "their_good:make"}}
    sources = {"their_good": PAIR_MODULE} | ({} if source is None else {module: source})
    install(site, f"package-of-{module}", "0.3", entries, sources)
    registry = Registry()
    with pytest.raises(PluginError, match=rf"(?s)model pair 'bad' \(package-of-{module} 0\.3: {value}\).*{cause}"):
        registry.create(PAIRS, "bad")
    assert registry.members(PAIRS)["good"].target == Path("target")


def test_two_packages_with_one_name_are_both_named_and_neither_is_chosen(site: Path) -> None:
    for package in ("first-package", "second-package"):
        module = package.replace("-", "_")
        entries = {"outrider.pairs": {"same": f"{module}:make", f"only-{package}": f"{module}:make"}}
        install(site, package, "1.0", entries, {module: PAIR_MODULE})
    registry = Registry()
    with pytest.raises(ConfigurationError, match=r"provided 2 times(?=.*first-package 1\.0)(?=.*second-package 1\.0)"):
        registry.create(PAIRS, "same")
    assert registry.create(PAIRS, "only-first-package").target == Path("target")


def test_what_is_registered_in_code_is_found_beside_what_is_installed() -> None:
    registry = Registry()
    registry.register(TARGETS, "mine", lambda: FakeTargets("mine"))
    assert registry.names(TARGETS) == tuple(sorted({"mine", *names(TARGETS)}))
    assert "mine" not in names(TARGETS), "another registry must not learn of it"
    loaders = registry.members(TARGETS)
    assert loaders["mine"] == FakeTargets("mine")
    assert loaders["mine"] is not loaders["mine"], "parts with state must not be shared between users"
    assert ("mine" in loaders, "yours" in loaders, len(loaders)) == (True, False, len(names(TARGETS)) + 1)
    with pytest.raises(KeyError):
        loaders["yours"]


def test_a_taken_name_cannot_be_registered(site: Path) -> None:
    install(site, "their-pair", "2.5", {"outrider.pairs": {"theirs": "nowhere:make"}}, {})
    registry = Registry()
    pair = ModelPair(Path("t"), ())
    with pytest.raises(ConfigurationError, match=r"'theirs' cannot be registered.*their-pair 2\.5: nowhere:make"):
        registry.register(PAIRS, "theirs", lambda: pair)
    registry.register(PAIRS, "mine", lambda: pair)
    with pytest.raises(ConfigurationError, match=r"'mine' cannot be registered.*registered in code"):
        registry.register(PAIRS, "mine", lambda: pair)
    registry.register(TARGETS, "mine", lambda: FakeTargets("mine"))


@pytest.mark.parametrize("name", ["tape", "cuda-graph", "breakable"])
def test_a_runner_is_made_as_its_options_say(name: str) -> None:
    options = RunnerOptions(Role.DECODE, token_buckets((4, 8)), request_buckets((1, 3)))
    sizes = parts.runner(name, options).sizes
    assert (sizes.role, sizes.tokens, sizes.tokens_left_out) == (Role.DECODE, (), (4, 8))
    assert (sizes.requests, sizes.requests_left_out) == ((1, 3), ())
    assert parts.runner(name).sizes.role is Role.BOTH


def test_the_eager_runner_leaves_its_options_alone() -> None:
    assert parts.runner("eager", RunnerOptions(capture_tokens=token_buckets((4,)))).sizes == GraphSizes()


def test_a_runner_of_ones_own_gets_the_options_and_one_that_takes_none_is_named(site: Path) -> None:
    registry = Registry()
    asked: list[RunnerOptions] = []

    def make(options: RunnerOptions) -> EagerRunner:
        asked.append(options)
        return EagerRunner()

    registry.register(RUNNERS, "mine", make)
    options = RunnerOptions(Role.PREFILL)
    assert registry.create(RUNNERS, "mine", options).sizes == GraphSizes()
    assert asked == [options]
    install(site, "old-runner", "0.1", {"outrider.runners": {"old": "old_runner:make"}}, {"old_runner": PAIR_MODULE})
    with pytest.raises(PluginError, match=r"runner 'old' \(old-runner 0\.1: .*TypeError"):
        Registry().create(RUNNERS, "old", options)
