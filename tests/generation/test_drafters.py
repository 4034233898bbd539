"""Which drafter a user gets, and wishes that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import outrider
from outrider.drafting.builders import ChainBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import CheckpointError, ConfigurationError, NoLoaderError
from outrider.generation.drafters import drafter_names, read_hot_tokens
from outrider.interfaces import ModelPair
from tests.cases_data import greedy_cases


def test_names_are_auto_the_loaders_and_ngram() -> None:
    assert drafter_names()[0] == "auto"
    assert {"eagle", "eagle3", "standalone", "ngram"} <= set(drafter_names())


def test_auto_takes_what_the_checkpoint_is(tiny_pair: ModelPair) -> None:
    for draft, kind in zip(tiny_pair.drafts, ("eagle3", "eagle"), strict=True):
        for drafter in ("auto", kind):
            builder = outrider.load(draft=draft, drafter=drafter).drafter
            assert isinstance(builder, ChainBuilder)
            assert builder.draft.spec.kind == kind


def test_a_plain_model_drafts_by_name_only(tiny_pair: ModelPair) -> None:
    with pytest.raises(NoLoaderError, match="--drafter standalone"):
        outrider.load(draft=tiny_pair.target)
    model = outrider.load(draft=tiny_pair.target, drafter="standalone", num_draft_tokens=3)
    case = greedy_cases()[0]
    completion = model.generate(case.prompt, max_new_tokens=33)
    assert completion.token_ids == case.token_ids[:33]
    assert set(completion.accept_lengths) == {4}


def test_ngram_needs_no_draft(tiny_pair: ModelPair) -> None:
    for draft in ("auto", None):
        builder = outrider.load(draft=draft, drafter="ngram", num_draft_tokens=7).drafter
        assert builder == NgramBuilder(7)
    assert outrider.load(drafter="ngram", num_draft_tokens=0).drafter is None


def test_hot_tokens_are_ids_or_a_file(tiny_pair: ModelPair, tmp_path: Path) -> None:
    file = tmp_path / "hot.json"
    file.write_text(json.dumps([30, 20, 30]))
    for hot_tokens in ([30, 20, 30], file, str(file)):
        builder = outrider.load(draft=tiny_pair.drafts[1], hot_tokens=hot_tokens).drafter
        assert isinstance(builder, ChainBuilder)
        assert builder.draft.spec.vocab.size == 2
    assert read_hot_tokens(None) is None
    with pytest.raises(CheckpointError, match=r"absent\.json"):
        outrider.load(draft=tiny_pair.drafts[1], hot_tokens=tmp_path / "absent.json")


def test_hot_tokens_that_a_draft_cannot_use_are_refused(tiny_pair: ModelPair) -> None:
    with pytest.raises(ConfigurationError, match=r"brings its own head of 1536 ids"):
        outrider.load(draft=tiny_pair.drafts[0], hot_tokens=[3])
    with pytest.raises(ConfigurationError, match=r"1 hot tokens are outside"):
        outrider.load(draft=tiny_pair.drafts[1], hot_tokens=[4096])


@pytest.mark.parametrize(
    ("drafter", "draft", "num_tokens", "hot_tokens", "message"),
    [
        ("medusa", "auto", 5, None, "drafter 'medusa' is not known; known are: auto, .*ngram"),
        ("auto", "auto", -1, None, "num_draft_tokens is -1"),
        ("standalone", None, 5, None, "drafter standalone needs a draft, but none is given"),
        ("eagle", "none", 5, None, "drafter eagle needs a draft"),
        ("ngram", "./draft", 5, None, "drafter ngram drafts without a model, but a draft is given"),
        ("ngram", "auto", 5, [1], "no draft model runs whose head they could cut"),
        ("auto", None, 5, [1], "no draft model runs"),
        ("auto", "auto", 0, [1], "no draft model runs"),
        ("ngram", "./draft", -2, [1], "(?s)3 problems.*num_draft_tokens.*without a model.*hot tokens"),
    ],
)
def test_contradictions_are_refused_before_anything_is_loaded(
    drafter: str, draft: str | None, num_tokens: int, hot_tokens: list[int] | None, message: str, tmp_path: Path
) -> None:
    # The draft of the pair stands for a draft that is there; a target that is not there would be found out first.
    target = None if draft == "auto" else str(tmp_path / "no target")
    with pytest.raises(ConfigurationError, match=message):
        outrider.load(target, draft, drafter=drafter, num_draft_tokens=num_tokens, hot_tokens=hot_tokens)


def test_a_draft_of_another_kind_than_named_is_refused(tiny_pair: ModelPair) -> None:
    with pytest.raises(NoLoaderError, match=r"'eagle' that was asked for does not recognise it"):
        outrider.load(draft=tiny_pair.drafts[0], drafter="eagle")
