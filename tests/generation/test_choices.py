"""What a user gets for a choice of tree, verifier and proposal, and every contradiction refused before a load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from attrs import evolve

import outrider
from outrider import EngineOptions, registry
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.choosing import ProposalMode
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ConfigurationError, PluginError
from outrider.generation.drafters import DraftPlan, drafter_names
from outrider.generation.drafting import (
    ChainShape,
    DraftingKeywords,
    DraftingOptions,
    DraftShape,
    DynamicShape,
    StaticShape,
)
from outrider.generation.load import plan_drafting
from outrider.interfaces import LosslessChoice, LossyChoice, ModelPair, ProposalKind
from outrider.registry import DRAFTERS, Group, Registry, parts
from outrider.types import HiddenTap
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier, TypicalVerifier
from tests.cases_data import greedy_cases

OPTIONS = EngineOptions(2, max_length=192)


def plan(**keywords: object) -> DraftPlan:
    return DraftPlan.of(DraftingOptions.of(keywords), has_draft=True, explicit=False)


@pytest.mark.parametrize(
    ("keywords", "shape"),
    [
        ({}, ChainShape(5)),
        ({"num_draft_tokens": 3}, ChainShape(3)),
        ({"num_draft_tokens": 0}, ChainShape(0)),
        ({"tree_depth": 4}, ChainShape(4)),
        ({"tree_depth": 4, "num_draft_tokens": 2}, ChainShape(2)),
        ({"tree_width": 4}, DynamicShape(4, 5, 15)),
        ({"tree_width": 2, "tree_depth": 2}, DynamicShape(2, 2, 6)),
        ({"tree_width": 3, "tree_depth": 1}, DynamicShape(3, 1, 3)),
        ({"tree_width": 4, "tree_depth": 3, "num_draft_tokens": 36}, DynamicShape(4, 3, 36)),
        ({"tree": [0, 0, 1]}, StaticShape((0, 0, 1))),
        ({"tree": [0, 1], "num_draft_tokens": 2}, StaticShape((0, 1))),
    ],
)
def test_shapes_and_their_defaults(keywords: dict[str, object], shape: DraftShape) -> None:
    assert plan(**keywords).shape == shape


@pytest.mark.parametrize(
    ("verifier", "chain", "static", "dynamic"),
    [
        ("exact", "coupled", "coupled", "coupled"),
        ("rejection", "sampled", "sampled", "greedy"),
        ("typical", "coupled", "coupled", "coupled"),
        ("block", "sampled", None, None),
    ],
)
def test_automatic_proposals_suit_the_verifier_and_the_tree(
    verifier: str, chain: ProposalKind, static: ProposalKind | None, dynamic: ProposalKind | None
) -> None:
    assert plan(verifier=verifier).mode is ProposalMode(chain)
    assert plan(verifier=verifier, tree=[0, 1, 2]).mode is ProposalMode(chain)
    if static is not None:
        assert plan(verifier=verifier, tree=[0, 0]).mode is ProposalMode(static)
        assert plan(verifier=verifier, tree_width=2).mode is ProposalMode(dynamic)
        assert plan(verifier=verifier, tree_width=2, proposal="coupled").mode is ProposalMode.COUPLED


def test_proposal_kinds_are_the_modes() -> None:
    assert set(get_args(ProposalKind)) == {mode.value for mode in ProposalMode}


@pytest.mark.parametrize(
    ("keywords", "messages"),
    [
        ({"tree_width": 0, "tree_depth": 0, "num_draft_tokens": -1}, ["tree_width is 0", "tree_depth is 0", "is -1"]),
        ({"tree_width": 2, "tree_depth": 3, "num_draft_tokens": 11}, ["k + k²(d - 1) = 10"]),
        ({"tree_depth": 2, "num_draft_tokens": 3}, ["k + k²(d - 1) = 2"]),
        ({"tree": []}, ["the tree has no node"]),
        ({"tree": [0, 2]}, ["node 2 has parent 2"]),
        ({"tree": [0, 1, 0]}, ["list the nodes level by level"]),
        ({"tree": [0], "tree_width": 2, "num_draft_tokens": 4}, ["width or depth of a dynamic one", "has 1 nodes"]),
        ({"verifier": "block", "tree_width": 2}, ["verifier block is defined for chains only"]),
        ({"verifier": "block", "tree": [0, 0]}, ["verifier block is defined for chains only"]),
        ({"proposal": "sampled", "tree_width": 2}, ["sampled with a dynamic tree"]),
        ({"verifier": "sure"}, ["verifier 'sure' is not known; known are: block, exact, rejection, typical"]),
        ({"drafter": "ngram", "tree": [0, 0]}, ["ngram proposes chains only"]),
        ({"drafter": "ngram", "proposal": "sampled"}, ["no distribution to draft sampled tokens from"]),
        ({"drafter": "ngram", "taps": [1]}, ["no draft model runs that is fed them"]),
        ({"num_draft_tokens": 0, "tree_width": 4}, ["a tree or a kind of proposal is asked, but nothing drafts"]),
        ({"taps": [1], "tap_convention": "boundary"}, ["beside taps, which are absolute"]),
        (
            {
                "verifier": "block",
                "tree_width": 2,
                "tree_depth": 1,
                "num_draft_tokens": 9,
                "proposal": "sampled",
                "drafter": "what",
            },
            ["4 problems", "= 2 candidates", "chains only", "sampled with a dynamic tree", "'what' is not known"],
        ),
    ],
)
def test_impossible_wishes_are_refused_all_at_once(keywords: dict[str, object], messages: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        plan(**keywords)
    assert all(message in str(raised.value) for message in messages)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proposal", "drawn"),
        ("tap_convention", "both"),
        ("tree", "0,1"),
        ("tree_width", None),
        ("taps", [-1]),
        ("taps", ["norm"]),
        ("hot_tokens", 3),
        ("hot_tokens", [1.5]),
    ],
)
def test_values_of_the_wrong_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{name}' is .*, expected "):
        DraftingOptions.of({name: value})


def test_nothing_is_loaded_for_an_impossible_wish(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="chains only"):
        outrider.load(tmp_path / "no target", tmp_path / "no draft", verifier="block", tree_width=2)
    with pytest.raises(ConfigurationError, match="nothing drafts"):
        outrider.load(tmp_path / "no target", tree_width=2)
    plan_drafting(tmp_path / "no target", tmp_path / "no draft", DraftingOptions(tree_width=2))


@pytest.mark.parametrize("width", [1537, 2000])
def test_more_children_than_the_draft_has_tokens_are_refused_when_it_is_known(width: int) -> None:
    with pytest.raises(ConfigurationError, match=f"width {width} is more than the 1536 tokens"):
        outrider.load(tree_width=width, options=OPTIONS)
    with pytest.raises(ConfigurationError, match=f"a node has {width} children"):
        outrider.load(tree=[0] * width, options=OPTIONS)


def test_load_builds_what_was_asked_for() -> None:
    chain = outrider.load(options=OPTIONS, num_draft_tokens=3, proposal="greedy").drafter
    assert isinstance(chain, ChainBuilder)
    assert (chain.length, chain.mode) == (3, ProposalMode.GREEDY)
    tree = outrider.load(options=OPTIONS, tree_width=3, tree_depth=2, num_draft_tokens=5, verifier="rejection").drafter
    assert isinstance(tree, TreeBuilder)
    assert (tree.width, tree.depth, tree.num_tokens, tree.mode) == (3, 2, 5, ProposalMode.GREEDY)
    static = outrider.load(options=OPTIONS, tree=(0, 0, 2), verifier="rejection").drafter
    assert isinstance(static, StaticTreeBuilder)
    assert (static.parents, static.mode) == ((0, 0, 2), ProposalMode.SAMPLED)
    assert outrider.load(options=OPTIONS, drafter="ngram", num_draft_tokens=4).drafter == NgramBuilder(4)


SAME_TEXT: list[DraftingKeywords] = [
    {"tree_width": 4, "tree_depth": 4},
    {"tree": [0, 0, 1, 1, 2, 3]},
    {"tree": [0, 1, 2], "verifier": "block"},
    {"verifier": "rejection", "tree_width": 2, "proposal": "coupled"},
    {"verifier": "typical", "num_draft_tokens": 2},
    {"taps": [1, 2, 3]},
    {"tap_convention": "layer_output"},
    {"drafter": "ngram"},
    {"num_draft_tokens": 0, "verifier": "block"},
]


@pytest.mark.parametrize("keywords", SAME_TEXT, ids=str)
def test_greedy_text_is_the_targets_whatever_is_chosen(keywords: DraftingKeywords) -> None:
    cases = greedy_cases()[:2]
    made = outrider.load(options=OPTIONS, **keywords)
    found = made.generate_batch([case.prompt for case in cases], max_new_tokens=30).completions
    assert [done.token_ids for done in found] == [case.token_ids[:30] for case in cases]


def test_taps_and_their_convention_reach_the_draft(tiny_pair: ModelPair) -> None:
    own = outrider.load(options=OPTIONS).drafter
    other = outrider.load(options=OPTIONS, taps=(0, HiddenTap.at(2), "final_norm")).drafter
    shifted = outrider.load(options=OPTIONS, tap_convention="layer_output").drafter
    for builder in (own, other, shifted):
        assert isinstance(builder, ChainBuilder)
    assert isinstance(own, ChainBuilder)
    assert isinstance(other, ChainBuilder)
    assert isinstance(shifted, ChainBuilder)
    assert other.draft.spec.taps == (HiddenTap(0), HiddenTap(2), HiddenTap(None))
    assert [tap.boundary for tap in shifted.draft.spec.taps] == [
        tap.boundary + 1 for tap in own.draft.spec.taps if tap.boundary is not None
    ]
    with pytest.raises(ConfigurationError, match=r"the draft cannot be used as asked: (?s:.*)taps"):
        outrider.load(draft=tiny_pair.target, drafter="standalone", taps=[1], options=OPTIONS)


def test_named_verifiers_say_by_their_type_what_they_keep() -> None:
    kinds = {name: registry.verifier(name) for name in ("exact", "rejection", "block", "typical")}
    for name, verifier in (("exact", ExactVerifier), ("rejection", RejectionVerifier), ("block", BlockVerifier)):
        choice = kinds[name]
        assert isinstance(choice, LosslessChoice)
        assert isinstance(choice.verifier, verifier)
    typical = kinds["typical"]
    assert isinstance(typical, LossyChoice)
    assert isinstance(typical.verifier, TypicalVerifier)
    assert [kinds[name].gives_same_tokens(greedy=False) for name in kinds] == [True, False, False, False]
    assert all(choice.gives_same_tokens(greedy=True) for choice in kinds.values())
    assert not evolve(typical, exact_when_greedy=False).gives_same_tokens(greedy=True)


def test_parts_of_other_packages_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Registry()
    monkeypatch.setattr(parts, "INSTALLED", installed)
    monkeypatch.setattr(registry, "INSTALLED", installed)
    built: list[int] = []

    def mine(length: int, /) -> NgramBuilder:
        built.append(length)
        return NgramBuilder(length, max_n=2)

    def broken() -> LosslessChoice:
        raise OSError("no such library")

    registry.register(DRAFTERS, "mine", lambda: mine)
    registry.register(registry.VERIFIERS, "careful", lambda: LosslessChoice(BlockVerifier()))
    registry.register(registry.VERIFIERS, "broken", broken)
    assert "mine" in drafter_names()
    made = outrider.load(drafter="mine", verifier="careful", num_draft_tokens=4, options=OPTIONS)
    assert built == [4]
    case = greedy_cases()[0]
    assert made.generate(case.prompt, max_new_tokens=20).token_ids == case.token_ids[:20]
    with pytest.raises(ConfigurationError, match="verifier careful is defined for chains only"):
        outrider.load(verifier="careful", tree_width=2)
    with pytest.raises(PluginError, match="verifier 'broken'"):
        outrider.load(verifier="broken")


def test_the_group_of_drafters_is_that_of_the_entry_points() -> None:
    group: Group[Callable[[], object]] = Group("outrider.drafters", "drafter")
    assert registry.names(group) == registry.names(DRAFTERS) == ("ngram",)
