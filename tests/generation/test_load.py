"""What `load` refuses before it reads a weight, and what sizes no machine has room for."""

from __future__ import annotations

import pytest

from outrider import EngineOptions, load
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
