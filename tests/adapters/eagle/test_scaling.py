"""Drafts that share embedding and head use them as the target does: scaled, and under its soft cap."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider import ChainBuilder, SpeculativeModel, registry
from outrider.checkpoint import Checkpoint
from outrider.drafting.choosing import ProposalMode
from outrider.errors import BindError
from outrider.interfaces import BoundDraft, LoadOptions, Target, UnboundDraft
from outrider.types import DraftOverrides, LogitScaling, WeightSource
from outrider.verification import RejectionVerifier
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.adapters.eagle.checkpoints import HIDDEN, authors_eagle3, eagle1
from tests.adapters.eagle.targets import CPU, make_target
from tests.support.pair import trained_pair
from tests.support.rescaled import rescaled
from tests.support.viewed_draft import ViewedDraft

OPTIONS = LoadOptions(CPU, torch.float32)
PROMPTS = ("for i in range(10):", "import numpy as np\n", "class Point:\n", "def main():")
SCALINGS = [LogitScaling(0.125), LogitScaling(cap=1.5), LogitScaling(2.0, 3.0)]


@cache
def trained_eagle1() -> UnboundDraft:
    """The draft of the trained pair that has neither embedding nor head of its own."""
    for directory in registry.pair("tiny").drafts:
        draft = registry.load_draft(Checkpoint(directory), OPTIONS)
        if draft.spec.head is WeightSource.TARGET:
            return draft
    raise AssertionError("no draft of the pair shares the head")


class RawHead(ViewedDraft):
    """Leaves out a scale of 1/8."""

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) * 8.0


def drafted(
    target: Target, mode: ProposalMode, of: Callable[[BoundDraft], BoundDraft] = lambda draft: draft
) -> tuple[list[tuple[int, ...]], float]:
    """Texts and acceptance length beside ``target`` at temperature 1."""
    model = SpeculativeModel(
        target,
        ChainBuilder(of(trained_eagle1().bind(target)), 4, mode),
        attention=SdpaBackend(),
        runner=EagerRunner,
        verifier=RejectionVerifier() if mode is ProposalMode.SAMPLED else None,
    )
    result = model.generate_batch(PROMPTS, temperature=1.0, seed=3, max_new_tokens=40)
    return [each.token_ids for each in result.completions], result.statistics.mean_acceptance_length


@pytest.mark.parametrize("mode", [ProposalMode.COUPLED, ProposalMode.SAMPLED])
def test_a_target_in_other_scales_is_drafted_for_as_well(mode: ProposalMode) -> None:
    target = trained_pair().target
    other = rescaled(target, 16.0, LogitScaling(0.125))
    texts, length = drafted(target, mode)
    assert length > 1.5
    same_texts, same_length = drafted(other, mode)
    assert same_texts == texts
    assert same_length == pytest.approx(length)
    if mode is ProposalMode.SAMPLED:
        assert drafted(other, mode, RawHead)[1] < length - 0.1


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("hot_tokens", [None, (7, 3, 40)])
def test_shared_ends_give_what_the_target_gives(
    scaling: LogitScaling, hot_tokens: tuple[int, ...] | None, tmp_path: Path
) -> None:
    target = rescaled(make_target(), 8.0, scaling)
    options = LoadOptions(CPU, overrides=DraftOverrides(hot_tokens=hot_tokens))
    draft = EagleLoader().load(Checkpoint(eagle1().write(tmp_path)), options).bind(target)
    hidden = 3.0 * torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(48)
    expected = target.stack.logits(hidden)
    torch.testing.assert_close(draft.logits(hidden), expected if hot_tokens is None else expected[:, list(hot_tokens)])
    torch.testing.assert_close(draft.embed(ids), target.stack.embed(ids))
    told = " | ".join(draft.spec.notes)
    assert "embedding: the target's, times 8 as the target embeds" in told
    assert f"head: logits as the target's are, scale {scaling.scale:g}" in told
    assert ("soft cap" in told) is (scaling.cap is not None)


def test_a_head_of_its_own_is_left_as_it_is(tmp_path: Path) -> None:
    draft = Eagle3Loader().load(Checkpoint(authors_eagle3().write(tmp_path)), OPTIONS)
    plain, scaled = (
        draft.bind(each) for each in (make_target(), rescaled(make_target(), 8.0, LogitScaling(0.25, 2.0)))
    )
    hidden = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.logits(hidden), plain.logits(hidden))
    assert not any(note.startswith("head: logits as the target's") for note in scaled.spec.notes)


@pytest.mark.parametrize(
    ("embedding_scale", "scaling", "says"),
    [
        (8.0, LogitScaling(), r"embeds otherwise than its shared embedding times embedding_scale 1\.0"),
        (1.0, LogitScaling(0.125), r"under its logit_scaling \(scale 1\.0, cap None; off by"),
        (1.0, LogitScaling(cap=3.0), "declare in ModelSpec the scale and soft cap"),
    ],
)
def test_what_a_target_keeps_to_itself_is_refused_at_bind(
    embedding_scale: float, scaling: LogitScaling, says: str, tmp_path: Path
) -> None:
    target = rescaled(make_target(), embedding_scale, scaling, declares=False)
    with pytest.raises(BindError, match=says):
        EagleLoader().load(Checkpoint(eagle1().write(tmp_path)), OPTIONS).bind(target)
