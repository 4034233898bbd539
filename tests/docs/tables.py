"""Tables that the documentation takes from the code: each stands between ``<!-- table: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import attrs
import click

from outrider import RequestSettings
from outrider.cli import main
from outrider.generation.drafting import DraftingOptions
from outrider.loop.build import EngineOptions
from tests.docs.blocks import ROOT

__all__ = ["TABLES", "current", "found_in"]

_MARKED = re.compile(r"<!-- table: ([\w -]+) -->\n(.*?)<!-- end -->", re.DOTALL)

Row = Sequence[str]


def _table(head: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(value: object) -> str:
    return "" if value is None or value in ((), {}) else f"`{value}`"


def _options(head: str, values: attrs.AttrsInstance) -> str:
    """A row for each field of a table of options; a default of ``None`` is told in words, where it comes to anything."""
    defaults: dict[str, object] = attrs.asdict(values, recurse=False)
    rows: list[Row] = []
    for each in attrs.fields(type(values)):
        words = cast("str | None", each.metadata["default"])
        rows.append((f"`{each.name}`", words or _code(defaults[each.name]), str(each.metadata["help"])))
    return _table((head, "Default", "Meaning"), rows)


def _settings() -> str:
    return _options("Setting", RequestSettings())


def _drafting() -> str:
    return _options("Option", DraftingOptions())


def _engine_options() -> str:
    defaults: dict[str, object] = attrs.asdict(EngineOptions(), recurse=False)
    return _table(("Option", "Default"), [(f"`{name}`", _code(value)) for name, value in defaults.items()])


def _flags(command: str) -> Callable[[], str]:
    def flags() -> str:
        rows: list[Row] = []
        for parameter in main.commands[command].params:
            if not isinstance(parameter, click.Option):
                continue
            names = " / ".join((*parameter.opts, *parameter.secondary_opts))
            value = "" if parameter.is_flag else f" {parameter.make_metavar(click.Context(main.commands[command]))}"
            text = " ".join((parameter.help or "").split())
            if parameter.show_default and not parameter.is_flag:
                text += f"  [default: {parameter.default}]"
            rows.append((f"`{names}{value}`", re.sub(r" +\[(default|repeatable)", r" [\1", text)))
        return _table(("Flag", "Meaning"), rows)

    return flags


_MEMBERS: Mapping[str, str] = {
    "outrider.attention": "an `AttnBackend`",
    "outrider.constraints": "a `ConstraintLoader`, for grammars",
    "outrider.drafts": "a `DraftLoader`",
    "outrider.drafters": "a drafter that needs no draft model",
    "outrider.pairs": "a `ModelPair`",
    "outrider.runners": "a `GraphRunner`, for `RunnerOptions`",
    "outrider.targets": "a `TargetLoader`",
    "outrider.verifiers": "a verifier, and what suits it",
}


def _parts() -> str:
    """Every entry-point group that the package declares, and what it holds."""
    project = cast("dict[str, object]", tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])
    declared = cast("dict[str, dict[str, str]]", project["entry-points"])
    rows = [(f"`{group}`", _MEMBERS[group], ", ".join(map(_code, sorted(of)))) for group, of in declared.items()]
    return _table(("Group", "What a member gives when it is called", "Members that come with Outrider"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "settings": _settings,
    "drafting": _drafting,
    "engine options": _engine_options,
    "flags of generate": _flags("generate"),
    "flags of inspect": _flags("inspect"),
    "parts": _parts,
}


def found_in(text: str) -> Mapping[str, str]:
    """The tables of a page, by name."""
    return {match[1]: match[2] for match in _MARKED.finditer(text)}


def current(text: str) -> str:
    """``text`` with every table as the code has it now."""
    return _MARKED.sub(lambda match: f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}<!-- end -->", text)
