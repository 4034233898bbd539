"""Whatever a path of an image names, it is read at once or refused at once, in a message that any output can hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.errors import InputError
from outrider.generation.files import MOST_BYTES, read_image, shown_path


def refusal(path: object) -> str:
    with pytest.raises(InputError) as caught:
        read_image(path)
    return str(caught.value)


def test_a_file_is_read_through_links_and_from_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.png").write_bytes(b"pixels")
    (tmp_path / "link.png").symlink_to("one.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_image(str(tmp_path / "link.png")) == read_image(Path("~/one.png")) == b"pixels"


@pytest.mark.timeout(20)
def test_what_may_never_end_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("pipe.png")
    assert "link.png': it is a pipe, which may never end; give" in refusal(tmp_path / "link.png")
    assert refusal("/dev/zero") == "'/dev/zero': it is a device, which may never end; give the path of an image file"


def test_a_file_of_more_bytes_than_any_image_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "vast.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert f"it has {MOST_BYTES + 1} bytes, at most {MOST_BYTES} are read" in refusal(tmp_path / "vast.png")


def test_a_loop_of_links_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert "loop.png': Too many levels of symbolic links; give" in refusal(tmp_path / "loop.png")
    assert f"'{tmp_path}': Is a directory; give" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.png").touch(mode=0)
    assert "mine.png': Permission denied; give" in refusal(tmp_path / "mine.png")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a.png",
        "HTTPS://example.org/a.png",
        "file:///tmp/a.png",
        "data:image/png;base64," + "A" * 5000,
    ],
)
def test_a_url_is_told_from_a_missing_file(url: str) -> None:
    said = refusal(url)
    assert said.startswith(f"'{url[:100]}")
    assert said.endswith("URLs are not fetched; download the file and give its path")
    assert len(said) < 500


def test_a_url_behind_a_folder_is_one(tmp_path: Path) -> None:
    assert "https:/example.org/a.png': URLs are not fetched" in refusal(tmp_path / "https://example.org/a.png")
    assert "No such file" in refusal(tmp_path / "metadata:a.png")


def test_a_file_with_the_name_of_a_url_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data:a.png").write_bytes(b"pixels")
    assert read_image("data:a.png") == b"pixels"


@pytest.mark.parametrize("path", [b"a.png", 3, None, object()])
def test_what_is_no_path_is_refused(path: object) -> None:
    assert refusal(path).startswith(f"{path!r:.60}: it is neither a path nor bytes; give")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a b ü.png", "a b ü.png"),
        ("a\nb.png", "'a\\nb.png'"),
        (os.fsdecode(b"caf\xe9.png"), "'caf\\udce9.png'"),
        ("\ud800.png", "'\\ud800.png'"),
    ],
)
def test_names_are_shown_in_one_line_of_unicode(name: str, shown: str) -> None:
    assert shown_path(name) == shown_path(Path(name)) == shown
    said = refusal(f"no/{name}")
    assert "\n" not in said
    assert said.encode()


def test_long_names_are_shortened_in_their_middle() -> None:
    shown = shown_path("a" * 400 + "b" * 400)
    assert shown == f"{'a' * 150}…{'b' * 150}"
