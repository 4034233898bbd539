"""Sizes that cannot work are refused when the engine is built, all of them at once."""

from __future__ import annotations

import pytest

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.errors import ConfigurationError
from outrider.interfaces import DrafterBuilder
from tests.support.engines import engine_of
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import toy_target

TARGET = toy_target()
DRAFT = ToyDraft(TARGET, ids=(1, 2, 3), max_draft_tokens=3)


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        (ChainBuilder(DRAFT, 0), ["num_draft_tokens is 0, at least 1"]),
        (ChainBuilder(DRAFT, 4), ["depth 4 asked", "at most 3"]),
        (TreeBuilder(DRAFT, 0, 2, 3), ["width 0, depth 2, 3 drafted tokens"]),
        (TreeBuilder(DRAFT, 2, 2, 7), ["7 drafted tokens asked", "at most k + k²(d - 1) = 6 candidates"]),
        (TreeBuilder(DRAFT, 4, 4, 3), ["width 4 is more than the 3 tokens", "depth 4 asked"]),
        (StaticTreeBuilder(DRAFT, ()), ["no node"]),
        (StaticTreeBuilder(DRAFT, (0, 2)), ["node 2 has parent 2", "0 to 1"]),
        (StaticTreeBuilder(DRAFT, (0, 1, 0)), ["node 3 stands at depth 1 after node 2 at depth 2", "level by level"]),
        (StaticTreeBuilder(DRAFT, (0, 0, 0, 0, 1, 5, 6)), ["a node has 4 children", "depth 4 asked"]),
    ],
)
def test_sizes_that_cannot_work(builder: DrafterBuilder, says: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(TARGET, builder)
    assert all(part in str(raised.value) for part in says), str(raised.value)


@pytest.mark.parametrize(
    "builder",
    [
        ChainBuilder(DRAFT, 3),
        TreeBuilder(DRAFT, 3, 3, 21),
        TreeBuilder(DRAFT, 3, 1, 1),
        StaticTreeBuilder(DRAFT, (0, 0, 0, 1, 4)),
    ],
)
def test_sizes_at_the_edge_work(builder: DrafterBuilder) -> None:
    assert engine_of(TARGET, builder).draft_depth in (1, 3)
