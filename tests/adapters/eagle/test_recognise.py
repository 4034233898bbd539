"""Telling EAGLE checkpoints from each other and from what is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import LoadOptions, ModelPair
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from outrider_adapters.eagle.names import canonical_name
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import HIDDEN, VOCAB, Sample, authors_eagle3
from tests.adapters.eagle.targets import CPU

EAGLE3, EAGLE1 = Eagle3Loader(), EagleLoader()
OPTIONS = LoadOptions(CPU)

NAMES = {
    "midlayer.mlp.up_proj.weight": "layers.0.mlp.up_proj.weight",
    "midlayer.2.mlp.up_proj.weight": "layers.2.mlp.up_proj.weight",
    "model.layers.1.mlp.up_proj.weight": "layers.1.mlp.up_proj.weight",
    "draft_model.midlayer.hidden_norm.weight": "layers.0.hidden_norm.weight",
    "draft_model.model.fc.weight": "fc.weight",
    "lm_head.weight": "lm_head.weight",
    "d2t": "d2t",
}


@pytest.mark.parametrize(("stored", "canonical"), NAMES.items())
def test_names_come_to_one_form(stored: str, canonical: str) -> None:
    assert canonical_name(stored) == canonical
    assert canonical_name(canonical) == canonical


def test_ordinary_model_is_no_eagle_head(tiny_pair: ModelPair, tmp_path: Path) -> None:
    ordinary = Checkpoint(tiny_pair.target)
    for loader in (EAGLE3, EAGLE1):
        assert "ordinary causal language model (8 layers" in (loader.refuses(ordinary) or "")
        with pytest.raises(CheckpointError, match=r"cannot be used as an EAGLE-.*ordinary causal language model"):
            loader.load(ordinary, OPTIONS)
        assert loader.describe(ordinary).problems
    layers = checkpoints.layer_tensors(0, joined=False, norms=("input_layernorm",))
    rest = {"embed_tokens.weight": torch.ones(VOCAB, HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    for name, loader in (("LlamaForCausalLMEagle3", EAGLE3), ("LlamaForCausalLMEagle", EAGLE1)):
        disguised = Sample(checkpoints.base_config(architectures=[name]), {**layers, **rest})
        clause = loader.refuses(Checkpoint(disguised.write(tmp_path / name)))
        assert "ordinary causal language model" in (clause or "")


OTHERS: dict[str, tuple[Sample, str]] = {
    "dflash": (
        authors_eagle3().configured(architectures=["DFlashDraftModel"]).storing(hidden_norm__weight=torch.ones(HIDDEN)),
        "DFlash",
    ),
    "p-eagle": (authors_eagle3().storing(mask_hidden=torch.ones(1, 1, 96)), "P-EAGLE"),
    "mtp": (Sample(checkpoints.base_config(), {"mtp.fc.weight": torch.ones(32, 64)}), "MTP"),
}


@pytest.mark.parametrize(("sample", "word"), OTHERS.values(), ids=OTHERS.keys())
def test_other_kinds_are_named(sample: Sample, word: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(sample.write(tmp_path))
    for loader in (EAGLE3, EAGLE1):
        assert word in (loader.refuses(checkpoint) or "")


def test_each_generation_leaves_the_other_alone(tiny_pair: ModelPair, tmp_path: Path) -> None:
    third, first = (Checkpoint(directory) for directory in tiny_pair.drafts)
    assert EAGLE3.refuses(third) is None
    assert "EAGLE-3" in (EAGLE1.refuses(third) or "")
    assert EAGLE1.refuses(first) is None
    assert "EAGLE-1" in (EAGLE3.refuses(first) or "")
    neither = Checkpoint(Sample(checkpoints.base_config(), {"weight": torch.ones(2)}).write(tmp_path))
    assert EAGLE3.refuses(neither)
    assert EAGLE1.refuses(neither)
