"""The checks of the documentation can fail: pages that lie are found out, and refreshed to the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import matches
from tests.docs.play import play
from tests.docs.refresh import refreshed

PYTHON = "```python\nx = {value}\nprint(x + 1)\n```\n\n```text\n{shown}\n```\n"
CONSOLE = "```console\n$ cat in.jsonl\n{line}\n$ outrider generate --input in.jsonl\n{shown}\n$ echo $?\n{code}\n```\n"
QUOTED = "```python\n# tests/docs/play.py\n{quoted}\n```\n"
MESSAGE = 'error: in.jsonl: line 1: expected a JSON object such as {"prompt": "..."}, found 5'


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lies(text: str) -> list[str]:
    return [f"{each.what}: {each.found.strip()}" for each in play(Path("page.md"), text)]


def test_true_pages_pass() -> None:
    assert lies(PYTHON.format(value=1, shown=2)) == []
    assert lies(CONSOLE.format(line=5, shown=MESSAGE, code=1)) == []
    assert lies(CONSOLE.format(line=5, shown="error: …expected a JSON object…", code=1)) == []
    assert lies(QUOTED.format(quoted="class Mismatch:")) == []


def test_lies_are_found() -> None:
    assert lies(PYTHON.format(value=1, shown=3)) == ["printed: 2"]
    assert lies(CONSOLE.format(line=5, shown="error: no", code=1)) == [
        f"$ outrider generate --input in.jsonl: {MESSAGE}"
    ]
    assert lies(CONSOLE.format(line=5, shown=MESSAGE, code=0).replace("in.jsonl", "other.jsonl")) != []
    [found] = lies(QUOTED.format(quoted="class Mismatched:"))
    assert found.startswith("quotes play.py")


def test_code_that_fails_is_not_overlooked() -> None:
    with pytest.raises(ZeroDivisionError):
        play(Path("page.md"), "```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError):
        play(Path("page.md"), "```python\ndef test_no() -> None:\n    assert 1 == 2\n```\n")


def test_unknown_programs_are_refused() -> None:
    with pytest.raises(ValueError, match="'rm' is not a program"):
        play(Path("page.md"), "```console\n$ rm file\n```\n")


def test_a_refreshed_page_is_true() -> None:
    for number, text in enumerate(
        (
            PYTHON.format(value=1, shown="3\n4"),
            CONSOLE.format(line=5, shown="error: no", code=0),
            PYTHON.format(value=1, shown=""),
        )
    ):
        text = text.replace("in.jsonl", f"{number}.jsonl")
        mended = refreshed(text, list(play(Path("page.md"), text)))
        Path(f"{number}.jsonl").unlink(missing_ok=True)
        assert mended != text
        assert lies(mended) == []


def test_the_wildcard_stands_for_parts_of_a_line_and_for_lines() -> None:
    assert matches("a … c\n…\nz", "a b c\nx\ny\nz\n\n")
    assert matches("…\nz", "z")
    assert matches("a…", "a")
    assert not matches("a … c", "a\nb c")
    assert not matches("a\n…\nz", "a\nb")
    assert not matches("a", "a\nb")
