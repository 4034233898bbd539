"""Grammars: the output is in the language, the same with and without drafting, and free neighbours notice nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import cast

import pytest
from attrs import evolve

from outrider import EngineOptions, Prompt, RequestSettings
from outrider.errors import InputError
from tests.generation.variants import DRAFTING, PROMPTS, builder, codec, model
from tests.support.engines import model_of
from tests.support.pair import trained_pair

SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["ann", "bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = "[a-c]{3}-[0-9]{4}( ok)?"
BASE = RequestSettings(max_new_tokens=60)
WANTED = [
    Prompt('{"name": ', evolve(BASE, json_schema=SCHEMA)),
    Prompt(PROMPTS[0], evolve(BASE, max_new_tokens=20)),
    Prompt("x = ", evolve(BASE, regex=REGEX, temperature=1.2, seed=3)),
    Prompt(PROMPTS[1], evolve(BASE, max_new_tokens=20, temperature=1.0, seed=8)),
    Prompt("y = ", evolve(BASE, regex=REGEX, temperature=0.8, seed=4, logprobs=1)),
    Prompt("[", evolve(BASE, json_schema=SCHEMA, temperature=1.0, seed=1, repetition_penalty=1.2)),
]


@cache
def alone() -> list[tuple[int, ...]]:
    """Tokens without drafting, one by one."""
    return [done.token_ids for done in model("plain", 1).generate_batch(WANTED).completions]


@cache
def free() -> list[tuple[int, ...]]:
    """Tokens of those without a grammar, among themselves."""
    return [done.token_ids for done in model("plain", 4).generate_batch([WANTED[1], WANTED[3]]).completions]


def check_record(text: str) -> None:
    record = cast("dict[str, object]", json.loads(text))
    assert list(record) == ["name", "age", "tags"]
    assert record["name"] in ("ann", "bob")
    assert isinstance(record["age"], int)
    assert 0 <= record["age"] <= 99
    tags = cast("list[object]", record["tags"])
    assert 1 <= len(tags) <= 3
    assert all(isinstance(tag, bool) for tag in tags)


@pytest.mark.parametrize(("name", "in_flight"), [(name, number % 2) for number, name in enumerate(DRAFTING)])
def test_a_mixed_batch_gives_each_its_own_with_and_without_drafting(name: str, in_flight: int) -> None:
    found = model(name, 4, in_flight).generate_batch(WANTED).completions
    assert [done.token_ids for done in found] == alone()
    assert [alone()[1], alone()[3]] == free()
    assert [done.finish_reason for done in found] == ["eos", "length", "eos", "length", "eos", "eos"]
    for place in (0, 5):
        check_record(found[place].text)
    for place in (2, 4):
        assert re.fullmatch(REGEX, found[place].text)
    # Log-probabilities are those before the grammar: what it forbids may have been likelier.
    assert len(found[4].logprobs) == len(found[4].token_ids)
    assert any(entry.chosen < entry.top[0][1] for entry in found[4].logprobs)


@pytest.mark.parametrize("budget", [1, 4])
def test_prompts_that_are_cut_begin_within_their_grammar(budget: int) -> None:
    """While others run, whose constraints stand elsewhere."""
    options = EngineOptions(3, page_size=8, max_length=192, max_prefill_tokens=budget)
    made = model_of(trained_pair().target, builder("chain"), options)
    assert [done.token_ids for done in made.generate_batch(WANTED).completions] == alone()


def test_drafts_are_accepted_within_a_grammar() -> None:
    """The walk down the tree allows at every node what its own path allows."""
    result = model("standalone", 4).generate("x = ", max_new_tokens=40, regex="(ab|cd){10}")
    assert re.fullmatch("(ab|cd){10}", result.text)
    repeated = model("ngram").generate("x = abcabcabc", max_new_tokens=40, regex="(abc){8}")
    assert repeated.text == "abc" * 8
    assert repeated.statistics.mean_acceptance_length > 1.5


@pytest.mark.parametrize("limit", [1, 2, 5, 9])
def test_a_limit_cuts_a_text_of_the_language(limit: int) -> None:
    whole = model("plain").generate("x = ", max_new_tokens=60, regex=REGEX)
    for name in ("chain", "dynamic tree"):
        cut = model(name).generate("x = ", max_new_tokens=limit, regex=REGEX)
        assert cut.token_ids == whole.token_ids[:limit]
        assert cut.finish_reason == ("length" if limit < len(whole.token_ids) else "eos")


def test_a_dead_end_fails_that_request_alone_with_a_typed_error() -> None:
    """Banning a token that the grammar needs leaves nothing to choose from."""
    digits = tuple(token for token in range(4096) if any(sign in codec().decode([token]) for sign in "0123456789"))
    dead = Prompt("x = ", evolve(BASE, regex="a[0-9]b", banned_token_ids=digits))
    for name in ("plain", "chain", "dynamic tree"):
        found = model(name, 4).generate_batch([WANTED[1], dead, WANTED[2]], raise_errors=False).completions
        assert found[1].error is not None
        assert found[1].finish_reason == "error"
        assert [found[0].token_ids, found[2].token_ids] == [alone()[1], alone()[2]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (evolve(BASE, regex="(("), "regex"),
        (evolve(BASE, json_schema={"type": "nothing"}), "schema"),
        (evolve(BASE, regex="a", json_schema=SCHEMA), "one grammar can hold at a time"),
        (evolve(BASE, regex="a", ignore_eos=True), "'ignore_eos' with a grammar"),
        (evolve(BASE, regex="a", min_new_tokens=3), "'min_new_tokens' with a grammar"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused(settings: RequestSettings, message: str) -> None:
    made = model("chain")
    with pytest.raises(InputError, match=message):
        made.generate_batch([Prompt("x", settings)])
    assert made.engine.num_running == made.engine.num_waiting == 0
