"""The tables: keywords, types and readers agree; values out of range are refused, all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import attrs
import pytest

from outrider import RequestSettings, load
from outrider.errors import ConfigurationError, InputError
from outrider.generation.drafting import DraftingKeywords, DraftingOptions
from outrider.generation.fields import FlagKind, option_flag
from outrider.generation.model import PromptLike
from outrider.generation.settings import SettingKeywords
from outrider.types import CaptureHiddenMode, HiddenTap
from tests.generation.variants import model

TABLES = [(RequestSettings, SettingKeywords), (DraftingOptions, DraftingKeywords)]


def scalars(hint: object) -> set[object]:
    """The plain types and literals within ``hint``, whatever container they stand in; a string stands for a list too."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    inner = get_args(hint)
    if not inner:
        return set() if hint in (type(None), Ellipsis) else {hint}
    return {each for part in inner for each in scalars(part)}


@pytest.mark.parametrize(("table", "keywords"), TABLES)
def test_keywords_are_the_fields_with_their_types(table: type[attrs.AttrsInstance], keywords: type) -> None:
    fields: dict[str, object] = get_type_hints(table)
    declared: dict[str, object] = get_type_hints(keywords)
    assert list(declared) == [attribute.name for attribute in attrs.fields(table)]
    for name, hint in declared.items():
        assert scalars(fields[name]) <= scalars(hint), name
        assert (type(None) in get_args(fields[name])) == (type(None) in get_args(hint)), name


@pytest.mark.parametrize(("table", "keywords"), TABLES)
def test_every_default_is_read_as_itself(table: type[attrs.AttrsInstance], keywords: type) -> None:
    defaults: dict[str, object] = attrs.asdict(table(), recurse=False)
    if table is RequestSettings:
        assert RequestSettings().override(defaults) == RequestSettings()
        RequestSettings().check()
    else:
        assert DraftingOptions.of(defaults) == DraftingOptions() == DraftingOptions.of({})
    for attribute in attrs.fields(table):
        assert option_flag(attribute) in get_args(FlagKind)


def test_values_of_json_become_the_fields_own() -> None:
    read = RequestSettings().override(
        {
            "temperature": 1,
            "stop": "a",
            "stop_sequences": [3, 4],
            "logit_bias": {"5": -1},
            "allowed_token_ids": None,
            "eos_token_ids": [],
            "json_schema": {"type": "object"},
        }
    )
    assert (read.temperature, read.stop, read.stop_sequences) == (1.0, ("a",), ((3, 4),))
    assert (read.logit_bias, read.allowed_token_ids, read.eos_token_ids) == ({5: -1.0}, None, ())
    assert read.eos_ids() == ()
    options = DraftingOptions.of({"tree": [0, 0], "taps": [1, HiddenTap.at(3), "final_norm"], "hot_tokens": "~/x"})
    assert options.taps == (HiddenTap(1), HiddenTap(3), HiddenTap(None))
    assert (options.tree, options.hot_tokens) == ((0, 0), Path("~/x").expanduser())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", True),
        ("max_new_tokens", 1.0),
        ("max_new_tokens", None),
        ("temperature", "1"),
        ("stop", [1]),
        ("stop_sequences", [[1], "a"]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": "x"}),
        ("banned_token_ids", 3),
        ("banned_token_ids", None),
        ("include_stop", 1),
        ("regex", 3),
        ("json_schema", [1]),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_expected(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"'{name}' is .*, expected ") as raised:
        RequestSettings().override({name: value, "seed": "x"})
    assert "'seed' is 'x', expected a whole number" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"max_new_tokens": 0, "top_k": -1}, ["max_new_tokens", "top_k"]),
        ({"temperature": math.inf, "top_p": 0.0, "min_p": 1.5}, ["temperature", "top_p", "min_p"]),
        ({"temperature": math.nan}, ["temperature"]),
        ({"min_new_tokens": 200}, ["min_new_tokens"]),
        ({"repetition_penalty": 0.0, "presence_penalty": math.nan}, ["repetition_penalty", "presence_penalty"]),
        ({"logit_bias": {1: math.inf}}, ["logit_bias"]),
        ({"seed": -1, "max_draft_tokens": -1, "logprobs": -1}, ["seed", "max_draft_tokens", "logprobs"]),
        ({"seed": 1 << 63}, ["seed"]),
        ({"temperature": 10**400, "top_k": 10**30}, ["temperature", "top_k"]),
        ({"repetition_penalty": 1e300, "frequency_penalty": -1e300}, ["repetition_penalty", "frequency_penalty"]),
        ({"banned_token_ids": range(4096)}, ["no token to generate"]),
        ({"hidden_states": "some"}, ["hidden_states"]),
        ({"banned_token_ids": [-1], "stop_sequences": [[4096]]}, ["banned_token_ids", "stop_sequences"]),
        ({"allowed_token_ids": [3], "banned_token_ids": [3]}, ["allowed_token_ids"]),
        ({"stop": ["a", ""]}, ["stop string 1 is empty"]),
    ],
)
def test_values_out_of_range_are_named_all_at_once(changes: dict[str, object], names: Sequence[str]) -> None:
    with pytest.raises(InputError) as raised:
        RequestSettings().override(changes).check(vocab_size=4096)
    assert all(name in str(raised.value) for name in names)


def test_every_hidden_state_mode_can_be_asked_for() -> None:
    for mode in CaptureHiddenMode:
        settings = RequestSettings().override({"hidden_states": mode.name.lower()})
        settings.check()
        assert settings.wants().hidden is mode


def test_options_of_the_engine_are_sent_to_their_place() -> None:
    with pytest.raises(
        ConfigurationError, match=r"max_batch_size is an option of the engine; give options=EngineOptions\("
    ):
        load(max_batch_size=2)  # type: ignore[call-arg]  # the mistake that is tested


def test_unknown_names_are_refused() -> None:
    made = model("plain")
    with pytest.raises(InputError, match=r"unknown settings temprature \(temperature\?\); known are max_new_tokens"):
        made.generate("x", temprature=1.0)  # type: ignore[call-arg]  # the mistake that is tested
    with pytest.raises(ConfigurationError, match="unknown options with; known are drafter"):
        DraftingOptions.of({"with": 3})


@pytest.mark.parametrize("prompt", [None, 5, [1.0, 2.0], ["a"], [[5, 6]], "\ud800"])
def test_a_prompt_of_another_type_is_refused(prompt: PromptLike) -> None:
    with pytest.raises(InputError, match=r"the prompt(:| is .*; give text, or whole numbers as token ids)"):
        model("plain").generate(prompt)


def test_any_sequence_of_whole_numbers_is_a_prompt() -> None:
    made = model("plain")
    expected = made.generate([5, 6, 7], max_new_tokens=3).token_ids
    for same in (range(5, 8), (5, 6, 7), bytes([5, 6, 7])):
        assert made.generate(same, max_new_tokens=3).token_ids == expected
