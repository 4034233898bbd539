"""Every published form, loaded and run, against the plain reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.interfaces import BoundDraft, DraftLoader, LoadOptions
from outrider.types import HiddenTap, StackInputs, WeightSource
from outrider_adapters.eagle import BoundEagle1, BoundEagle3, Eagle3Loader, EagleLoader
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import Sample, random_tensor
from tests.adapters.eagle.published import EAGLE1, EAGLE3, Case
from tests.adapters.eagle.reference import Form, ReferenceAttention, ReferenceDraft
from tests.adapters.eagle.targets import CPU, TwoTensors, make_target

NUM_PAIRS = 6
STEPS = (3, 41, 3)


CASES = [pytest.param(Eagle3Loader(), case, id=f"eagle-3 {name}") for name, case in EAGLE3.items()] + [
    pytest.param(EagleLoader(), case, id=f"eagle-1 {name}") for name, case in EAGLE1.items()
]


@pytest.mark.parametrize(("loader", "case"), CASES)
def test_published_form_computes_what_the_reference_computes(
    loader: Eagle3Loader | EagleLoader, case: Case, tmp_path: Path
) -> None:
    sample = case.make()
    checkpoint = Checkpoint(sample.write(tmp_path / "draft", case.num_shards))
    assert loader.refuses(checkpoint) is None
    target = make_target(hidden=case.target_hidden)
    draft = loader.load(checkpoint, LoadOptions(CPU, overrides=case.overrides)).bind(target)

    spec = draft.spec
    assert spec.taps == tuple(HiddenTap(boundary) for boundary in case.taps)
    assert (spec.embedding, spec.head) == (case.embedding, case.head)
    assert spec.feature_width == len(case.taps) * case.target_hidden
    shared = target.weights
    assert isinstance(shared, TwoTensors)
    if case.embedding is WeightSource.TARGET:
        assert draft.embedding.data_ptr() == shared.embedding.data_ptr()
    if case.head is WeightSource.TARGET:
        assert draft.head.data_ptr() == shared.head.data_ptr()

    embedding = shared.embedding if case.embedding is WeightSource.TARGET else sample.tensors["embed_tokens.weight"]
    head = _reference_head(sample, case, shared)
    _compare(draft, ReferenceDraft(sample.tensors, case.form, embedding, head), case)


def _reference_head(sample: Sample, case: Case, shared: TwoTensors) -> Tensor:
    if case.head is WeightSource.TARGET:
        return shared.head
    if case.head is WeightSource.TARGET_SLICED:
        return torch.stack([shared.head[token] for token in (40, 3, 7, 12)])
    stored = sample.stored or sample.tensors
    tied = not any(name.endswith("lm_head.weight") for name in stored)
    return sample.tensors["embed_tokens.weight" if tied else "lm_head.weight"]


def _compare(draft: BoundEagle3 | BoundEagle1, reference: ReferenceDraft, case: Case) -> None:
    """Verified rows in two pieces, then drafted rows on the draft's own state."""
    features = random_tensor("features", NUM_PAIRS, len(case.taps) * case.target_hidden) * 5
    tokens = torch.tensor([5, 0, 47, 13, 5, 22])
    run = reference.eagle3 if isinstance(draft, BoundEagle3) else reference.eagle1
    fuse = reference.fuse if isinstance(draft, BoundEagle3) else Tensor.double
    attend = ReferenceAttention(case.form.head_dim**-0.5)
    state: Tensor | None = None
    expected_state = torch.zeros(0)
    for rows in (slice(0, 4), slice(4, NUM_PAIRS)):
        positions = torch.arange(NUM_PAIRS)[rows]
        out = draft.extend(draft.embed(tokens[rows]), features[rows], StackInputs(positions, attend))
        expected = run(tokens[rows], fuse(features[rows]), positions)
        state, expected_state = _same(draft, out.hidden, out.state, expected)
    assert state is not None
    state, expected_state = state[-1:], expected_state[-1:]
    for depth, token in enumerate(STEPS):
        positions, step_tokens = torch.tensor([NUM_PAIRS + depth]), torch.tensor([token])
        kept = state.clone()
        out = draft.step(draft.embed(step_tokens), state, StackInputs(positions, attend))
        assert torch.equal(state, kept), "the state handed in is not written to"
        state, expected_state = _same(draft, out.hidden, out.state, run(step_tokens, expected_state, positions))


def _same(
    draft: BoundDraft, hidden: Tensor, state: Tensor | None, expected: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    assert state is not None
    torch.testing.assert_close(hidden.double(), expected[0], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state.double(), expected[1], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(draft.logits(hidden).double(), expected[2], rtol=2e-5, atol=2e-5)
    return state, expected[1]


BROKEN = {
    "residual": evolve(Form(), norm_before_residual=True),
    "fed-back state": evolve(Form(), norm_output=True),
    "rope": evolve(Form(), theta=500.0),
    "epsilon": evolve(Form(), eps=0.1),
}


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in BROKEN.items()])
def test_comparison_notices_a_wrong_form(form: Form, tmp_path: Path) -> None:
    case = Case(checkpoints.specforge_eagle3, form)
    sample, target = case.make(), make_target()
    draft = Eagle3Loader().load(Checkpoint(sample.write(tmp_path)), LoadOptions(CPU)).bind(target)
    assert target.weights is not None
    reference = ReferenceDraft(sample.tensors, form, target.weights.embedding, sample.tensors["lm_head.weight"])
    with pytest.raises(AssertionError):
        _compare(draft, reference, case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_are_loaded_in_the_dtype_asked(dtype: torch.dtype, tmp_path: Path) -> None:
    loader: DraftLoader = Eagle3Loader()
    checkpoint = Checkpoint(checkpoints.specforge_eagle3().write(tmp_path))
    draft = loader.load(checkpoint, LoadOptions(CPU, dtype)).bind(make_target(dtype=dtype))
    rows = draft.embed(torch.tensor([1, 2]))
    out = draft.extend(rows, torch.ones(2, 96, dtype=dtype), StackInputs(torch.arange(2), ReferenceAttention(0.3)))
    assert draft.spec.dtype == rows.dtype == out.hidden.dtype == draft.logits(out.hidden).dtype == dtype
    assert draft.spec.state is not None
    assert draft.spec.state.dtype == dtype
