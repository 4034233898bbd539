"""Tables are markdown, and a report replaces its own part of a document only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks._report import Report, Table, environment


def test_columns_are_aligned_text_left_and_numbers_right() -> None:
    table = Table(("name", "tokens/s", "why"), (("a", "1", "x"), ("longer", "1000", "")), frozenset({0, 2}))
    assert str(table).splitlines() == [
        "| name   | tokens/s | why |",
        "|--------|---------:|-----|",
        "| a      |        1 | x   |",
        "| longer |     1000 |     |",
    ]


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("# Title\n<!-- cpu:begin -->\nold\n<!-- cpu:end -->\n<!-- gpu:begin -->\nkept\n<!-- gpu:end -->\n")
    for text in ("first", "second"):
        report = Report("cpu")
        report.add(text)
        report.write(path)
    assert path.read_text() == (
        "# Title\n<!-- cpu:begin -->\n\nsecond\n\n<!-- cpu:end -->\n<!-- gpu:begin -->\nkept\n<!-- gpu:end -->\n"
    )
    assert capsys.readouterr().out == "first\n\nsecond\n\n"


def test_a_file_without_markers_holds_the_report_alone(tmp_path: Path) -> None:
    report = Report("cpu")
    report.add("text")
    report.add(Table(("a",), (("b",),)))
    report.write(tmp_path / "new.md")
    assert (tmp_path / "new.md").read_text() == "text\n\n| a |\n|---|\n| b |\n"


def test_a_report_with_a_file_is_there_as_it_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "speed.md"
    report = Report("speed", path)
    report.add("first")
    report.put("table", "one row")
    assert path.read_text() == "first\n\none row\n"
    report.add("last")
    report.put("table", "two rows", show=False)
    assert path.read_text() == "first\n\ntwo rows\n\nlast\n"
    assert capsys.readouterr().out == "first\n\none row\n\nlast\n\n"


def test_the_environment_names_versions_and_no_path() -> None:
    text = environment(torch.device("cpu"))
    assert f"torch {torch.__version__}" in text
    assert "/" not in text
