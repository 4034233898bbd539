"""A bound draft drafts for the target that it was bound to, and is refused for any other, be it of the same sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import evolve

from outrider import AdaptiveChainBuilder, ChainBuilder, StaticTreeBuilder, TreeBuilder, registry
from outrider.checkpoint import Checkpoint
from outrider.errors import BindError
from outrider.interfaces import BoundDraft, DrafterBuilder, LoadOptions, Target
from outrider.types import DraftSpec, DraftVocab, HiddenTap, RowAlignment
from tests.support.engines import engine_of
from tests.support.pair import trained_pair
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import CPU, ToySizes, ToyStack, toy_target

STACK = ToyStack(seed=1)
TARGET = Target(STACK, STACK.weights)
BUILDERS: dict[str, Callable[[BoundDraft], DrafterBuilder]] = {
    "chain": lambda draft: ChainBuilder(draft, 3),
    "adaptive": lambda draft: AdaptiveChainBuilder(draft, 3),
    "tree": lambda draft: TreeBuilder(draft, 2, 2, 4),
    "static tree": lambda draft: StaticTreeBuilder(draft, (0, 0, 1)),
}
DRAFTS: dict[str, Callable[[], BoundDraft]] = {
    "on features": lambda: ToyDraft(TARGET, taps=(HiddenTap.at(1),), recurrent=True),
    "with shared weights": lambda: SelfDraft(TARGET, STACK),
    "standalone": lambda: SelfDraft(TARGET, STACK, alignment=RowAlignment.SAME),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize("make", DRAFTS.values(), ids=DRAFTS)
def test_another_target_of_the_same_sizes_is_refused(
    make: Callable[[], BoundDraft], build: Callable[[BoundDraft], DrafterBuilder]
) -> None:
    builder = build(make())
    with pytest.raises(
        BindError, match=r"bound to 'toy' \(48 ids.*another load, whose weights may differ.*draft\.bind"
    ):
        engine_of(toy_target(seed=1), builder)
    engine_of(TARGET, builder)
    # The same model with other powers is the same target.
    engine_of(evolve(TARGET, eos_ids=(3,), weights=None), builder)


def test_sizes_of_both_are_told_and_nothing_that_follows_from_them() -> None:
    small = toy_target(ToySizes(hidden=8, vocab=30, layers=1))
    with pytest.raises(BindError) as raised:
        engine_of(small, ChainBuilder(ToyDraft(TARGET, taps=(HiddenTap.at(2),)), 3))
    assert "bound to 'toy' (48 ids, hidden size 16, 2 layers)" in str(raised.value)
    assert "this target is 'toy' (30 ids, hidden size 8, 1 layers)" in str(raised.value)
    assert "another load" not in str(raised.value)
    assert "target_hidden_size" not in str(raised.value)


@pytest.mark.parametrize("kind", ["eagle3", "eagle1", "standalone"])
def test_drafts_of_the_trained_pair_know_their_target(kind: str) -> None:
    pair, options = trained_pair(), LoadOptions(CPU, torch.float32)
    files = Checkpoint(registry.pair("tiny").target)
    standalone = registry.load_draft(files, options, "standalone")
    draft = {"eagle3": pair.eagle3, "eagle1": pair.eagle1, "standalone": standalone.bind(pair.target)}[kind]
    assert draft.bound_to is pair.target.stack
    engine_of(pair.target, ChainBuilder(draft, 2))
    for other in (registry.load_target(files, options), toy_target()):
        with pytest.raises(BindError, match=r"bound to 'tiny-llama' \(4096 ids, hidden size 256"):
            engine_of(other, ChainBuilder(draft, 2))
    # The remedy that the message names.
    if kind == "standalone":
        again = registry.load_target(files, options)
        engine_of(again, ChainBuilder(standalone.bind(again), 2))


class Declares(ToyDraft):
    """Says something else of itself than it is."""

    change: Callable[[DraftSpec], DraftSpec]

    @property
    def spec(self) -> DraftSpec:
        return self.change(super().spec)


MISFITS: tuple[tuple[Callable[[DraftSpec], DraftSpec], str], ...] = (
    (lambda spec: evolve(spec, vocab=DraftVocab(50, 50)), r"vocab\.target_size is 50, 'toy' has 48 ids"),
    (lambda spec: evolve(spec, target_hidden_size=8), r"target_hidden_size is 8, 'toy' is 16 wide"),
)


@pytest.mark.parametrize(("change", "says"), MISFITS)
def test_a_spec_that_is_not_of_the_target_is_refused(change: Callable[[DraftSpec], DraftSpec], says: str) -> None:
    draft = Declares(TARGET, taps=(HiddenTap.at(1),))
    draft.change = change
    with pytest.raises(BindError, match=says):
        engine_of(TARGET, ChainBuilder(draft, 3))
