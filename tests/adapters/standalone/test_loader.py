"""A plain model drafts only where that is asked for by name, and says what it cannot honour."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from attrs import evolve

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, NoLoaderError
from outrider.interfaces import AskedByName, LoadOptions, ModelPair
from outrider.types import DraftOverrides, HiddenTap, TapConvention
from outrider_adapters.standalone import StandaloneDraft, StandaloneLoader, load, loader

OPTIONS = LoadOptions(torch.device("cpu"), torch.float32)


def test_the_entry_point_gives_this_loader() -> None:
    (entry,) = [point for point in entry_points(group="outrider.drafts") if point.name == "standalone"]
    assert entry.load() is loader


def test_a_plain_model_given_as_a_draft_is_an_error_that_says_how_to_mean_it(tiny_pair: ModelPair) -> None:
    with pytest.raises(NoLoaderError) as caught:
        registry.load_draft(Checkpoint(tiny_pair.target), OPTIONS)
    message = str(caught.value)
    assert "'eagle3': it is an ordinary causal language model" in message
    assert "'standalone': only when asked for by name (drafter standalone)" in message
    assert "were the target and the draft exchanged?" in message
    assert message.endswith("To use it all the same, name the draft loader: --drafter standalone")


def test_by_name_it_is_loaded(tiny_pair: ModelPair) -> None:
    checkpoint = Checkpoint(tiny_pair.target)
    assert isinstance(StandaloneLoader().refuses(checkpoint), AskedByName)
    draft = registry.load_draft(checkpoint, OPTIONS, loader="standalone")
    assert isinstance(draft, StandaloneDraft)
    assert (draft.spec.kind, draft.spec.name, len(draft.spec.layers)) == ("standalone", "tiny-llama", 8)
    assert load(checkpoint, OPTIONS).spec.vocab.size == 4096
    hot = evolve(OPTIONS, overrides=DraftOverrides(hot_tokens=(9, 8, 9)))
    assert load(checkpoint, hot).spec.vocab.size == 2


def test_a_model_is_described_as_what_it_is_and_as_nothing_else(tiny_pair: ModelPair) -> None:
    found = registry.describe(Checkpoint(tiny_pair.target))
    assert found.kind == "target (llama)"
    assert not any("recognised by" in note for note in found.notes)
    assert StandaloneLoader().describe(Checkpoint(tiny_pair.target)) == found


def test_what_no_target_loader_takes_is_refused_by_name_too(tiny_pair: ModelPair) -> None:
    with pytest.raises(
        NoLoaderError, match=r"'standalone' that was asked for .* no target loader recognises it \('llama'"
    ):
        registry.load_draft(Checkpoint(tiny_pair.drafts[0]), OPTIONS, loader="standalone")


def test_overrides_that_concern_the_target_are_refused_together(tiny_pair: ModelPair) -> None:
    overrides = DraftOverrides(taps=(HiddenTap(2),), tap_convention=TapConvention.BOUNDARY, target_head=True)
    with pytest.raises(CheckpointError, match=r"(?s)3 problems.*taps was.*tap_convention was.*target_head was"):
        load(Checkpoint(tiny_pair.target), evolve(OPTIONS, overrides=overrides))


def test_a_faulty_model_is_told_by_its_own_loader(tmp_path: Path, tiny_pair: ModelPair) -> None:
    (tmp_path / "config.json").write_bytes((tiny_pair.target / "config.json").read_bytes().replace(b"704", b"700"))
    (tmp_path / "model.safetensors").symlink_to(tiny_pair.target / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"700"):
        registry.load_draft(Checkpoint(tmp_path), OPTIONS, loader="standalone")
