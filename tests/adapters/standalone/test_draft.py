"""What a standalone draft says of itself, and the targets and hot tokens it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import BindError, CheckpointError, ConformanceError
from outrider.interfaces import StateRollback, Target
from outrider.types import LogitScaling, RowAlignment, StackInputs, WeightSource
from outrider_adapters.standalone import StandaloneDraft
from tests.adapters.llama.reference import ReferenceAttend
from tests.adapters.standalone.samples import CappedStack, WordCodec, random_model
from tests.support.rescaled import rescaled


@pytest.fixture
def model(tmp_path: Path) -> Target:
    return random_model(tmp_path / "model")


def test_the_spec_has_no_state_and_no_taps_by_type(model: Target) -> None:
    spec = StandaloneDraft(model).spec
    assert (spec.kind, spec.state, spec.taps, spec.target_hidden_size) == ("standalone", None, (), None)
    assert (spec.embedding, spec.head, spec.alignment) == (WeightSource.OWN, WeightSource.OWN, RowAlignment.SAME)
    assert (spec.layers, spec.max_positions, spec.rope) == (
        model.stack.spec.layers,
        model.stack.spec.max_positions,
        model.stack.spec.rope,
    )
    assert (spec.feature_width, spec.embed_width, spec.vocab.is_full) == (0, 32, True)


def test_verified_and_drafted_rows_run_the_models_own_layers(model: Target) -> None:
    stack, draft = model.stack, StandaloneDraft(model).bind(model)
    ids, positions = torch.tensor([5, 9, 13]), torch.arange(3)
    expected = stack.run_layers(stack.embed(ids), StackInputs(positions, ReferenceAttend(stack.spec.layers))).hidden
    attend = ReferenceAttend(stack.spec.layers)
    first = draft.extend(draft.embed(ids[:2]), None, StackInputs(positions[:2], attend))
    second = draft.step(draft.embed(ids[2:]), None, StackInputs(positions[2:], attend))
    torch.testing.assert_close(torch.cat([first.hidden, second.hidden]), expected)
    assert (first.state, second.state) == (None, None)
    assert draft.logits(expected).equal(stack.logits(expected))
    with pytest.raises(ConformanceError, match="is fed no feature"):
        draft.extend(draft.embed(ids), expected, StackInputs(positions, attend))
    with pytest.raises(ConformanceError, match="carries no state"):
        draft.step(draft.embed(ids), expected, StackInputs(positions, attend))


def test_a_model_of_several_position_axes_is_given_text_on_each(model: Target) -> None:
    stack = CappedStack(model.stack, axes=True)
    draft = StandaloneDraft(Target(stack)).bind(model)
    inputs = StackInputs(torch.arange(2), ReferenceAttend(stack.spec.layers))
    draft.extend(draft.embed(torch.tensor([5, 9])), None, inputs)
    assert stack.position_shapes == [(3, 2)]


def test_another_vocabulary_is_refused_with_both_sizes(model: Target, tmp_path: Path) -> None:
    larger = random_model(tmp_path / "larger", vocab_size=101)
    with pytest.raises(BindError, match=r"vocabulary of 97 ids, the target of 101.*same family"):
        StandaloneDraft(model).bind(larger)


def test_tokenizers_must_mean_the_same(model: Target) -> None:
    mine, theirs = evolve(model, codec=WordCodec()), evolve(model, codec=WordCodec(swapped=(33, 34)))
    with pytest.raises(
        BindError, match=r"both have 97 ids, but their tokenizers differ: id 3[34] is '[AB]' to the draft"
    ):
        StandaloneDraft(mine).bind(theirs)
    # What only one of them knows, and what is put in front of a prompt, is no difference.
    StandaloneDraft(mine).bind(evolve(model, codec=WordCodec(prefix=[96])))
    StandaloneDraft(mine).bind(model)
    StandaloneDraft(model).bind(theirs)


class _Undo(StateRollback):
    def checkpoint(self, first_row: int, num_rows: int) -> None: ...

    def restore(self, first_row: int, counts: Tensor) -> None: ...


def test_a_model_that_must_be_rolled_back_cannot_draft(model: Target) -> None:
    with pytest.raises(CheckpointError, match="recurrent or sliding state"):
        StandaloneDraft(evolve(model, rollback=_Undo()))


def test_hot_tokens_cut_the_head_to_their_rows(model: Target) -> None:
    draft = StandaloneDraft(model, (40, 3, 7, 3, 12)).bind(model)
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert draft.spec.vocab.to_target(torch.arange(4)).equal(torch.tensor([40, 3, 7, 12]))
    torch.testing.assert_close(draft.logits(rows), model.stack.logits(rows)[:, [40, 3, 7, 12]])
    assert "cut to 4 hot tokens in the order given, 1 repeats dropped" in draft.spec.notes[-1]


def test_a_head_is_cut_with_the_scale_and_the_cap_of_its_logits(model: Target) -> None:
    scaled = rescaled(model, 16.0, LogitScaling(0.25, cap=2.0))
    draft, rows = StandaloneDraft(scaled, (40, 3, 7)).bind(scaled), torch.randn(3, 32)
    torch.testing.assert_close(draft.logits(rows), scaled.stack.logits(rows)[:, [40, 3, 7]])


@pytest.mark.parametrize(
    ("hot_tokens", "message"),
    [((1, 97), r"1 hot tokens are outside the target's 0 to 96 \(97\)"), ((), "the hot-token list is empty")],
)
def test_hot_tokens_outside_the_vocabulary_are_refused(
    model: Target, hot_tokens: tuple[int, ...], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        StandaloneDraft(model, hot_tokens)


def test_a_head_that_cannot_be_cut_is_refused(model: Target) -> None:
    with pytest.raises(CheckpointError, match="no SharedWeights to cut its head from"):
        StandaloneDraft(evolve(model, weights=None), (3, 4))
    with pytest.raises(CheckpointError, match=r"cannot be cut: the logits .* are not hidden @ head.T"):
        StandaloneDraft(evolve(model, stack=CappedStack(model.stack)), (3, 4))
