"""Drafts and targets that do not fit: refused at bind, with both sides, all misfits at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import BindError, ConformanceError
from outrider.interfaces import LoadOptions, Target
from outrider.types import StackInputs
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import HIDDEN, VOCAB, authors_eagle3, eagle1
from tests.adapters.eagle.reference import ReferenceAttention
from tests.adapters.eagle.targets import CPU, TwoTensors, make_target

EAGLE3, EAGLE1 = Eagle3Loader(), EagleLoader()
OPTIONS = LoadOptions(CPU)


MISFITS: dict[str, tuple[Target, str]] = {
    "hidden size": (make_target(hidden=64), r"features of width 32, the target's hidden size is 64"),
    "shared embedding of another width": (make_target(hidden=64), r"32 wide and takes its embedding from the target"),
    "vocabulary": (make_target(vocab=50), r"a vocabulary of 48 ids, the target has 50"),
    "dtype": (
        make_target(dtype=torch.bfloat16),
        r"torch.float32, the target's torch.bfloat16; load both with the same",
    ),
    "device": (make_target(device=torch.device("meta")), r"on cpu, the target on meta"),
    "nothing to share": (make_target(shares=False), r"takes its embedding from the target, whose loader offers no"),
}


@pytest.mark.parametrize(("target", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_misfit_is_refused_at_bind(target: Target, message: str, tmp_path: Path) -> None:
    draft = EAGLE3.load(Checkpoint(authors_eagle3().write(tmp_path)), OPTIONS)
    with pytest.raises(BindError, match=message):
        draft.bind(target)


def test_all_misfits_are_told_at_once(tmp_path: Path) -> None:
    draft = EAGLE1.load(Checkpoint(eagle1().write(tmp_path)), OPTIONS)
    with pytest.raises(BindError) as caught:
        draft.bind(make_target(hidden=64, vocab=50, dtype=torch.bfloat16, shares=False))
    for part in ("width 32", "its embedding", "its head", "48 ids", "bfloat16", "embedding and head from the target"):
        assert part in str(caught.value)


def test_target_whose_weights_belie_its_spec_is_refused(tmp_path: Path) -> None:
    draft = EAGLE1.load(Checkpoint(eagle1().write(tmp_path)), OPTIONS)
    honest = make_target()
    weights = TwoTensors(torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB + 16, HIDDEN))
    with pytest.raises(BindError, match=r"the target's head is \[64, 32\] torch.float32, expected \[48, 32\]"):
        draft.bind(Target(honest.stack, weights))


def test_draft_that_needs_nothing_binds_to_a_target_that_shares_nothing(tmp_path: Path) -> None:
    draft = EAGLE3.load(Checkpoint(checkpoints.speculators_eagle3().write(tmp_path)), OPTIONS)
    bound = draft.bind(make_target(shares=False))
    assert bound.embedding.shape[0] == bound.head.shape[0] == VOCAB
    assert bound.spec == draft.spec


def test_rows_without_their_feature_or_state_are_refused(tmp_path: Path) -> None:
    inputs, rows = StackInputs(torch.arange(1), ReferenceAttention(0.3)), torch.zeros(1, HIDDEN)
    eagle3 = EAGLE3.load(Checkpoint(authors_eagle3().write(tmp_path / "3")), OPTIONS).bind(make_target())
    single = EAGLE1.load(Checkpoint(eagle1().write(tmp_path / "1")), OPTIONS).bind(make_target())
    for draft in (eagle3, single):
        with pytest.raises(ConformanceError, match="is fed"):
            draft.extend(rows, None, inputs)
        with pytest.raises(ConformanceError, match="is fed"):
            draft.step(rows, None, inputs)
