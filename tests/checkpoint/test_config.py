"""Whatever stands in a config or in its place: an error that names the file, never another exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.checkpoint import Checkpoint, Config
from outrider.errors import CheckpointError


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"vocab_size":' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "list", "not UTF-8", "deep", "digits"],
)
def test_a_config_that_is_no_object_is_refused_with_its_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        Checkpoint(tmp_path)


def test_a_number_beyond_every_float_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"c: 'rope_theta' is 1000.*, expected a number"):
        Config("c", {"rope_theta": 10**400}).get_float("rope_theta")


def test_a_directory_that_may_not_be_entered_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(CheckpointError, match="cannot be looked into: Permission denied; check its permissions"):
        Checkpoint(tmp_path)
