"""Every page tells the truth: its code runs, its commands run, what they print is what it says, its links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from outrider import registry
from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.play import play
from tests.docs.tables import TABLES, current, found_in

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
EXAMPLES = {
    "generate.py": ("self.x = x", "same tokens as the target alone: True", " True"),
    "streaming.py": ("from| numpy|", "ended by length", 'if __name__ == "__main__":'),
    "embedding.py": (
        "report: cancelled",
        "question: eos",
        "other: length after 20 tokens",
        "list: length after 30 tokens",
    ),
    "custom_target.py": ("13 of 13 checks passed", "True"),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, a registry that forgets, and no GPU, on which other numbers would come out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.INSTALLED, "_registered", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page: Path) -> None:
    assert "\n\n".join(map(str, play(page))) == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == current(text), "run: python -m tests.docs.refresh"


def test_every_table_has_its_page() -> None:
    shown = {name for page in PAGES for name in found_in(page.read_text(encoding="utf-8"))}
    assert shown == set(TABLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not heading or heading in map(anchor, HEADING.findall(target.read_text(encoding="utf-8")))


def anchor(heading: str) -> str:
    """What a heading is called in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_place_of_one_machine_and_no_test_that_is_not_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(work|home|tmp|root)/", text)
    for path in re.findall(r"`((?:tests|sdk|docs|examples|scripts)/[\w./*]+)`", text):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_stay_short(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / name
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert [part for part in EXAMPLES[name] if part not in printed] == []
    assert "False" not in printed
    assert len(path.read_text(encoding="utf-8").splitlines()) < 100


def test_every_block_has_a_language_and_every_page_was_looked_at() -> None:
    for page in PAGES:
        assert [block.where for block in blocks_of(page) if not block.language] == []
    assert {"README.md", "architecture.md", "embedding.md", "sampling.md", "cli.md"} <= {page.name for page in PAGES}
