"""What `load` refuses before it reads a weight, and what sizes no machine has room for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare

from outrider import EngineOptions, load, registry
from outrider.errors import CapacityError, CheckpointError, ConfigurationError


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("warp", "not known to PyTorch"),
        ("", "not known to PyTorch"),
        ("xpu", "this PyTorch cannot use it"),
        ("cuda:99", "PyTorch sees"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"device '{device}' is .*{said}"):
        load(device=device)


@pytest.mark.parametrize("name", ["a" * 5000, "~no-such-user-at-all/model", "nul\0"])
def test_a_name_that_can_be_no_path_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be a directory|does not exist"):
        load(name)
    with pytest.raises(CheckpointError, match=r"cannot be a directory|does not exist"):
        load(draft=name)


@pytest.mark.parametrize(
    "options", [EngineOptions(max_batch_size=10**12), EngineOptions(page_size=10**15)], ids=["rows", "pages"]
)
def test_sizes_beyond_the_memory_say_what_to_lower(options: EngineOptions) -> None:
    with pytest.raises(
        CapacityError, match=r"no memory for the KV of .* lower max_batch_size, max_length or page_size"
    ):
        load(options=options)


def test_drafts_beyond_every_sequence_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="draft fewer"):
        load(num_draft_tokens=10**30)


def test_what_loaders_chose_is_told(tmp_path: Path) -> None:
    pair = registry.pair("tiny")
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 100}))
    model = load(target, pair.drafts[0])
    assert any(note.startswith("target: ") and "100" in note and "8" in note for note in model.notes)
    assert any(note.startswith("draft: ") for note in model.notes)


def test_a_draft_with_nan_weights_is_refused_by_name(tmp_path: Path) -> None:
    pair = registry.pair("tiny")
    draft = tmp_path / "draft"
    shutil.copytree(pair.drafts[0], draft)
    tensors = load_file(draft / "model.safetensors")
    tensors["fc.weight"][3, 5] = float("nan")
    save_file(tensors, draft / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'fc\.weight' holds NaN"):
        load(pair.target, draft)
