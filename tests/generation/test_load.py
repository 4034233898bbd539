"""What `load` refuses before it reads a weight, and what sizes no machine has room for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare

from outrider import EngineOptions, load, registry
from outrider.errors import CapacityError, CheckpointError, ConfigurationError
from outrider.types import Role
from tests.cases_data import greedy_cases


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


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"role": "both ways"}, "role 'both ways' is not known; allowed are both, prefill, decode"),
        ({"capture_tokens": ()}, "capture_tokens: buckets of tokens []: there is none"),
        ({"capture_tokens": (16, 4)}, "capture_tokens: buckets of tokens [16, 4]: they are not in ascending order"),
        ({"capture_requests": (1, 1)}, "capture_requests: buckets of requests [1, 1]: [1] are there more than once"),
        ({"capture_requests": (1 << 40,)}, "are above 1048576, the most a bucket may hold"),
        ({"role": "", "capture_tokens": (0,), "capture_requests": ()}, "3 problems"),
    ],
)
def test_runners_that_cannot_be_are_refused_before_a_load(keywords: Mapping[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        load("no-such-directory", **cast("dict[str, Any]", keywords))


def test_a_runner_is_made_and_captured_as_asked() -> None:
    options = EngineOptions(1, max_length=96)
    asked = load(
        runner="tape",
        role="prefill",
        capture=True,
        capture_tokens=(4, 8),
        capture_requests=[1],
        options=options,
        num_draft_tokens=2,
    )
    summary = asked.captured
    assert summary is not None
    assert (summary.runner, summary.role, summary.sizes, summary.left_out) == ("tape", Role.PREFILL, 2, 1 * 2 * 2)
    assert {each.size for each in summary.captured} == {"4 tokens", "8 tokens"}
    before = len(asked.engine.report.captured)
    case = greedy_cases()[2]
    assert asked.generate(case.prompt, max_new_tokens=9).token_ids == tuple(case.token_ids[:9])
    assert len(asked.engine.report.captured) == before
    assert load(options=options).captured is None
