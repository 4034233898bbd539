"""Flags come from the table of settings: each one reaches the request, of whatever type it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_type_hints

import attrs
import click
import pytest
from click.testing import CliRunner

from outrider import RequestSettings
from outrider.cli import main
from outrider.cli.generate import generate_command
from outrider.cli.options import setting_flag
from outrider.generation.drafting import DraftingOptions
from outrider.generation.fields import names_with_flags, option_help
from tests.cli.support import PROMPTS, Command, write_lines

SETTINGS = names_with_flags(RequestSettings)
SCHEMA = {"type": "object"}
SAMPLES: dict[str, tuple[str, object]] = {
    "max_new_tokens": ("7", 7),
    "temperature": ("0.5", 0.5),
    "top_k": ("9", 9),
    "top_p": ("0.5", 0.5),
    "min_p": ("0.25", 0.25),
    "seed": ("11", 11),
    "logit_bias": ('{"5": -1.5}', {"5": -1.5}),
}
CHOICES: dict[str, tuple[list[str], object]] = {
    "drafter": (["--drafter", "eagle3"], "eagle3"),
    "num_draft_tokens": (["--num-draft-tokens", "3"], 3),
    "adaptive": (["--adaptive"], True),
    "tree_width": (["--tree-width", "2"], 2),
    "tree_depth": (["--tree-depth", "4"], 4),
    "tree": (["--tree", "0,0, 1"], [0, 0, 1]),
    "verifier": (["--verifier", "rejection"], "rejection"),
    "proposal": (["--proposal", "greedy"], "greedy"),
    "hot_tokens": (["--hot-tokens", "hot.json"], "hot.json"),
    "taps": (["--taps", '[1, "final_norm"]'], [1, "final_norm"]),
    "tap_convention": (["--tap-convention", "layer_output"], "layer_output"),
}


def sample(name: str, directory: Path) -> tuple[list[str], object]:
    """Arguments that set ``name`` to something that is not its default, and that value."""
    flag = f"--{name.replace('_', '-')}"
    if name in SAMPLES:
        given, value = SAMPLES[name]
        return [flag, given], value
    if name == "json_schema":
        return [flag, str(write_lines(directory / "schema.json", SCHEMA))], SCHEMA
    default: object = attrs.asdict(RequestSettings(), recurse=False)[name]
    if isinstance(default, bool):
        return [flag if not default else f"--no-{flag.removeprefix('--')}"], not default
    if isinstance(default, int | float):
        return [flag, str(default + 1)], default + 1
    hint = str(get_type_hints(RequestSettings)[name])
    if "tuple[tuple[int" in hint:
        return [flag, "[3, 4]", flag, "[5]"], ((3, 4), (5,))
    if "tuple[str" in hint:
        return [flag, "ab", flag, "cd"], ("ab", "cd")
    if "tuple[int" in hint:
        return [flag, "3", flag, "4"], (3, 4)
    if "int" in hint:
        return [flag, "3"], 3
    return [flag, "ab"], "ab"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_flag_that_reaches_the_request(outrider: Command, tmp_path: Path, name: str) -> None:
    arguments, value = sample(name, tmp_path)
    ran = outrider("generate", PROMPTS[0], *arguments, spoil=lambda _: iter(()))
    assert ran.models[0].asked[0][1] == RequestSettings().override({name: value})
    assert ran.models[0].asked[0][1] != RequestSettings()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_a_field_of_a_line_that_overrides_its_flag(
    outrider: Command, tmp_path: Path, name: str
) -> None:
    arguments, value = sample(name, tmp_path)
    default: object = attrs.asdict(RequestSettings(), recurse=False)[name]
    path = write_lines(tmp_path / "in.jsonl", {"prompt": "a", name: default}, {"prompt": "b", name: value})
    ran = outrider("generate", "--input", path, *arguments, spoil=lambda _: iter(()))
    assert [each.settings for each in ran.models[0].asked[0][0]] == [
        RequestSettings(),
        RequestSettings().override({name: value}),
    ]


def test_a_setting_that_only_python_can_use_has_no_flag_and_is_no_field_of_a_line(
    outrider: Command, tmp_path: Path
) -> None:
    assert set(RequestSettings.names()) - set(SETTINGS) == {"hidden_states"}
    assert outrider("generate", PROMPTS[0], "--hidden-states", "full").code == 2
    ran = outrider("generate", "--input", write_lines(tmp_path / "in", {"prompt": "a", "hidden_states": "full"}))
    assert ran.code == 1
    assert "unknown keys 'hidden_states'" in ran.err


@pytest.mark.parametrize("name", DraftingOptions.names())
def test_every_drafting_option_has_a_flag_that_reaches_load(outrider: Command, name: str) -> None:
    arguments, value = CHOICES[name]
    needed = {"hot_tokens": ["--draft", "x"], "tree_depth": ["--tree-width", "2"]}.get(name, [])
    ran = outrider("generate", PROMPTS[0], *arguments, *needed, spoil=lambda _: iter(()))
    assert ran.code == 0, ran.err
    wanted = {name: value, **({"tree_width": 2} if name == "tree_depth" else {})}
    assert DraftingOptions.of(ran.loads[0]) == DraftingOptions.of(wanted) != DraftingOptions()


def test_the_names_of_the_tables_do_not_meet() -> None:
    assert set(RequestSettings.names()).isdisjoint(DraftingOptions.names())


def test_flags_stand_under_headings() -> None:
    text = CliRunner().invoke(generate_command, ["--help"], terminal_width=100).stdout
    headings = (
        "Prompts and results:",
        "Models, and how they run:",
        "Drafting and verification:",
        "Settings of a prompt:",
    )
    places = [text.index(f"\n{heading}\n") for heading in headings]
    assert places == sorted(places)
    for flag, heading in (("--compare", 0), ("--target", 1), ("--explain", 1), ("--taps", 2), ("--seed", 3)):
        found = text.index(f"\n  {flag} ")
        assert [place for place in places if place < found] == places[: heading + 1]


@pytest.mark.parametrize("name", ["serve", "def main():"])
def test_what_is_no_command_is_told_which_there_are(name: str) -> None:
    ran = CliRunner().invoke(main, [name])
    assert ran.exit_code == 2
    assert f"no command {name!r}; commands are generate, inspect" in ran.stderr


def test_the_help_of_every_setting_is_shown_and_no_flag_is_declared_twice() -> None:
    text = " ".join(CliRunner().invoke(generate_command, ["--help"], terminal_width=200).stdout.split())
    for table in (RequestSettings, DraftingOptions):
        for attribute in attrs.fields(table):
            assert (option_help(attribute, None).split("  [")[0] in text) is (attribute.name in names_with_flags(table))
    flags = [flag for parameter in generate_command.params for flag in parameter.opts]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ('{"a":' * 100_000, "is not JSON"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_file_that_holds_no_json_is_bad_usage(
    outrider: Command, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    ran = outrider("generate", PROMPTS[0], "--json-schema", path)
    assert (ran.code, ran.models) == (2, [])
    assert message in ran.err


@pytest.mark.parametrize(
    ("hint", "arguments", "value"),
    [
        (int, ["--a-b", "3"], 3),
        (float, ["--a-b", "3"], 3.0),
        (str, ["--a-b", "3"], "3"),
        (bool, ["--a-b"], True),
        (bool, ["--no-a-b"], False),
        (bool, [], None),
        (int | None, ["--a-b", "3"], 3),
        (str | None, [], None),
        (Literal["x", "y"], ["--a-b", "y"], "y"),
        (tuple[str, ...], ["--a-b", "3", "--a-b", "4 5"], ("3", "4 5")),
        (tuple[int, ...] | None, ["--a-b", "3", "--a-b", "4"], (3, 4)),
        (tuple[str, ...], [], ()),
        (str | tuple[str, ...], ["--a-b", "3"], ("3",)),
        (tuple[tuple[int, ...], ...], ["--a-b", "[1, 2]", "--a-b", "[3]"], ([1, 2], [3])),
        (Mapping[int, float], ["--a-b", '{"5": -1.5}'], {"5": -1.5}),
        (Mapping[str, object] | None, ["--a-b", "{}"], {}),
    ],
)
def test_a_flag_is_made_for_any_type_a_setting_may_have(hint: object, arguments: list[str], value: object) -> None:
    assert parse(hint, arguments) == value


@pytest.mark.parametrize(
    ("hint", "given", "message"),
    [
        (int, "x", "'x' is not a valid integer"),
        (tuple[int, ...], "x", "'x' is not a valid integer"),
        (Literal["x", "y"], "z", "'z' is not one of 'x', 'y'"),
        (Mapping[int, float], "{", "Invalid value for '--a-b': '{' is not JSON"),
    ],
)
def test_a_value_of_the_wrong_type_is_bad_usage(hint: object, given: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse(hint, ["--a-b", given])
    assert message in caught.value.format_message()


def parse(hint: object, arguments: list[str]) -> object:
    seen: list[object] = []

    @click.command()
    @setting_flag("a_b", hint, "help")
    def command(a_b: object) -> None:
        seen.append(a_b)

    command.main(arguments, standalone_mode=False)
    return seen[0]
