"""A target with state that rejection would spoil is decoded plainly or not at all."""

from __future__ import annotations

import pytest
from attrs import evolve
from torch import Tensor

from outrider import ChainBuilder, EngineOptions, NgramBuilder, registry
from outrider.errors import BindError
from outrider.interfaces import DrafterBuilder, StateRollback
from outrider.loop.build import build_engine
from tests.support.pair import trained_pair


class Undo(StateRollback):
    def checkpoint(self, first_row: int, num_rows: int) -> None: ...

    def restore(self, first_row: int, counts: Tensor) -> None: ...


@pytest.mark.parametrize("drafter", [ChainBuilder(trained_pair().eagle3, 3), NgramBuilder(3)])
def test_drafting_for_it_is_refused(drafter: DrafterBuilder) -> None:
    target = evolve(trained_pair().target, rollback=Undo())
    sdpa, eager = registry.attention("sdpa"), registry.runner("eager")
    options = EngineOptions(max_batch_size=1, max_length=32)
    says = r"drafting 3 tokens a round .*Target\.rollback.*without a drafter.*max_batch_size=1.*eager runner"
    with pytest.raises(BindError, match=says):
        build_engine(target, drafter, attention=sdpa, runner=eager, options=options)
    build_engine(target, attention=sdpa, runner=eager, options=options)
