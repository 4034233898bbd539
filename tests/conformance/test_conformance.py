"""Sound adapters pass every check; adapters that are broken on purpose fail the check that is named for it."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.conformance import check_draft, check_target
from outrider.errors import BindError, ConformanceError
from outrider.interfaces import BoundDraft, SharedWeights, Target
from outrider.types import AttnCapabilities, HiddenTap, LogitScaling, RowAlignment, StackInputs, StackOutput
from outrider_backends.sdpa import SdpaBackend
from tests.backends.odd_stacks import OutsideStack, featured, standalone
from tests.conformance.broken_drafts import BROKEN_DRAFTS, STACK, TARGET
from tests.conformance.broken_targets import BROKEN_TARGETS
from tests.support.pair import trained_pair
from tests.support.rescaled import rescaled
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToySizes, ToyStack, toy_target

SDPA = SdpaBackend()


def test_the_trained_pair_conforms() -> None:
    pair = trained_pair()
    check_target(pair.target, attention=SDPA)
    check_draft(pair.eagle3, pair.target, attention=SDPA)
    check_draft(pair.eagle1, pair.target, attention=SDPA)


def test_what_is_declared_as_outside_of_graphs_may_read_on_the_host() -> None:
    for target, draft in (standalone(OutsideStack()), featured(OutsideStack())):
        check_target(target, attention=SDPA)
        check_draft(draft, target, attention=SDPA)


@pytest.mark.parametrize(
    "target",
    [
        toy_target(),
        toy_target(ToySizes(heads=4, kv_heads=4, layers=1, max_positions=9)),
        toy_target(ToySizes(layers=5), eos_ids=(0, 47)),
        Target(ToyStack()),
    ],
)
def test_sound_targets_pass(target: Target) -> None:
    report = check_target(target, attention=SDPA, seed=3)
    assert report.passed
    assert "tree verification" in str(report)
    assert ("shared weights" in str(report)) is (target.weights is not None)


@pytest.mark.parametrize(
    "draft",
    [
        ToyDraft(TARGET),
        ToyDraft(TARGET, recurrent=True, ids=(1, 2)),
        ToyDraft(TARGET, taps=(HiddenTap.at(0),), max_positions=8),
        ToyDraft(TARGET, taps=(HiddenTap.at(2), HiddenTap.final_norm(), HiddenTap.at(2)), recurrent=True),
        SelfDraft(TARGET, STACK),
        SelfDraft(TARGET, STACK, ids=(30, 2, 11)),
        SelfDraft(TARGET, STACK, alignment=RowAlignment.SAME),
    ],
)
def test_sound_drafts_pass(draft: BoundDraft) -> None:
    report = check_draft(draft, TARGET, attention=SDPA, seed=3)
    assert ("features used" in str(report)) is bool(draft.spec.taps)
    assert ("state used" in str(report)) is (draft.spec.state is not None)


@pytest.mark.parametrize("name", BROKEN_TARGETS)
def test_broken_targets_fail_the_check_for_it(name: str) -> None:
    make, check, says = BROKEN_TARGETS[name]
    report = check_target(make(), attention=SDPA, raise_failures=False)
    assert check in report.failed, str(report)
    faults = next(result.faults for result in report.results if result.name == check)
    assert any(says in fault for fault in faults), faults
    with pytest.raises(ConformanceError) as raised:
        report.raise_failures()
    assert all(f"[{failed}]" in str(raised.value) for failed in report.failed)
    assert f"FAIL {check}\n" in str(report)


@pytest.mark.parametrize("name", BROKEN_DRAFTS)
def test_broken_drafts_fail_the_check_for_it(name: str) -> None:
    make, check, says = BROKEN_DRAFTS[name]
    report = check_draft(make(), TARGET, attention=SDPA, raise_failures=False)
    assert check in report.failed, str(report)
    faults = next(result.faults for result in report.results if result.name == check)
    assert any(says in fault for fault in faults), faults


def test_every_check_has_an_adapter_that_fails_it() -> None:
    for broken, report in (
        (BROKEN_TARGETS, check_target(toy_target(), attention=SDPA)),
        (
            BROKEN_DRAFTS,
            check_draft(ToyDraft(TARGET, taps=(HiddenTap.at(1),), recurrent=True), TARGET, attention=SDPA),
        ),
    ):
        assert {result.name for result in report.results} == {check for _, check, _ in broken.values()}


def test_failures_raise_by_default_and_all_at_once() -> None:
    make, _, _ = BROKEN_TARGETS["rows counted for positions"]
    with pytest.raises(ConformanceError) as raised:
        check_target(make(), attention=SDPA)
    assert "target 'toy' does not keep its contract: " in str(raised.value)
    assert "[cached decode]" in str(raised.value)
    assert "[tree verification]" in str(raised.value)


class LearnedPositions(ToyStack):
    """Positions are added to the first residual stream, as in GPT-2 and OPT: `embed` does not know them."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        table = torch.randn(96, self.sizes.hidden, generator=torch.Generator().manual_seed(9))
        return super().run_layers(hidden + table.index_select(0, inputs.positions), inputs)


def test_learned_positions_are_no_fault() -> None:
    stack = LearnedPositions(seed=1)
    assert check_target(Target(stack, stack.weights), attention=SDPA).passed


@pytest.mark.parametrize("scaling", [LogitScaling(0.125), LogitScaling(cap=2.0), LogitScaling(3.0, 2.0)])
def test_declared_scales_and_caps_are_no_fault(scaling: LogitScaling) -> None:
    target = rescaled(Target(STACK, STACK.weights), 4.0, scaling)
    assert check_target(target, attention=SDPA).passed


class RawEnds(SelfDraft):
    """Takes embedding and head as they are stored, whatever the target makes of them."""

    weights: SharedWeights

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.weights.embedding.index_select(0, token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        ids = self.spec.vocab.target_ids
        return hidden @ (self.weights.head if ids is None else self.weights.head[ids]).T


@pytest.mark.parametrize("ids", [None, (30, 2, 11)])
def test_a_draft_must_scale_what_it_shares_as_the_target_does(ids: tuple[int, ...] | None) -> None:
    target = rescaled(Target(STACK, STACK.weights), 4.0, LogitScaling(0.125))
    draft = RawEnds(target, STACK, ids)
    assert target.weights is not None
    draft.weights = target.weights
    report = check_draft(draft, target, attention=SDPA, raise_failures=False)
    faults = next(result.faults for result in report.results if result.name == "shared weights")
    assert report.failed == ("shared weights",)
    assert len(faults) == 2
    assert any("embedding_scale, 4.0" in fault for fault in faults), faults
    assert any("LogitScaling(scale=0.125, cap=None)" in fault for fault in faults), faults


def test_weights_are_restored() -> None:
    stack = ToyStack(seed=1)
    before = (stack.weights.embedding.clone(), stack.weights.head.clone())
    target = Target(stack, stack.weights)
    check_target(target, attention=SDPA)
    check_draft(SelfDraft(target, stack), target, attention=SDPA)
    assert torch.equal(before[0], stack.weights.embedding)
    assert torch.equal(before[1], stack.weights.head)


class Limited(SdpaBackend):
    """A backend without trees, for one page size and one head dim."""

    head_dim = 8

    @property
    def capabilities(self) -> AttnCapabilities:
        return evolve(
            super().capabilities, tree_masks=False, page_sizes=frozenset({16}), head_dims=frozenset({self.head_dim})
        )


def test_a_backend_without_trees_serves_for_the_rest() -> None:
    report = check_target(toy_target(), attention=Limited())
    assert report.passed
    assert "tree verification" not in str(report)


def test_a_backend_that_cannot_serve_the_layers_is_named() -> None:
    backend = Limited()
    backend.head_dim = 64
    with pytest.raises(BindError, match="head_dim 8, attention backend 'sdpa' serves 64"):
        check_target(toy_target(), attention=backend)
    with pytest.raises(BindError, match="head_dim 6"):
        check_draft(ToyDraft(TARGET), TARGET, attention=backend)
