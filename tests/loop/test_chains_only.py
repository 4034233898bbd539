"""A verifier that is defined for chains is refused beside a drafter of trees, before anything runs."""

from __future__ import annotations

import pytest

from outrider import ChainBuilder, EngineOptions, NgramBuilder, StaticTreeBuilder, TreeBuilder, registry
from outrider.errors import BindError
from outrider.interfaces import DrafterBuilder
from outrider.loop.build import build_engine
from outrider.loop.engine import Engine
from outrider.verification import BlockVerifier
from tests.support.pair import trained_pair

DRAFT = trained_pair().eagle3


def engine(drafter: DrafterBuilder | None) -> Engine:
    sdpa, eager = registry.attention("sdpa"), registry.runner("eager")
    options = EngineOptions(max_batch_size=1, max_length=32)
    return build_engine(
        trained_pair().target, drafter, attention=sdpa, runner=eager, verifier=BlockVerifier(), options=options
    )


@pytest.mark.parametrize("drafter", [TreeBuilder(DRAFT, 2, 3, 5), StaticTreeBuilder(DRAFT, (0, 0, 1))])
def test_trees_are_refused(drafter: DrafterBuilder) -> None:
    with pytest.raises(BindError, match=r"chains only.*a tree of [0-9]+ tokens in [0-9] levels.*draft a chain"):
        engine(drafter)


@pytest.mark.parametrize("drafter", [None, ChainBuilder(DRAFT, 3), NgramBuilder(3)])
def test_chains_are_not(drafter: DrafterBuilder | None) -> None:
    engine(drafter).close()
