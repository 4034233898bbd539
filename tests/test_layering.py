"""The layers hold: import-linter keeps its contracts here, and breaks them on a copy with a forbidden import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREES = ("sdk", "backends", "adapters")
LINT = "import sys; from importlinter.cli import lint_imports_command as lint; sys.exit(lint(['--no-cache']))"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """The linter's run over the packages in ``root``, whatever is installed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / tree) for tree in TREES), "COLUMNS": "400"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages without their data, to be spoiled."""
    for tree in TREES:
        shutil.copytree(ROOT / tree, tmp_path / tree, ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("sdk/outrider/errors.py", "import transformers", "outrider is not allowed to import transformers"),
        ("sdk/outrider/loop/planted.py", "import transformers.utils", "outrider is not allowed to import transformers"),
        ("sdk/outrider/planted.py", "import outrider_backends", "outrider is not allowed to import outrider_backends"),
        ("sdk/outrider/planted.py", "import outrider_adapters", "outrider is not allowed to import outrider_adapters"),
        (
            "backends/outrider_backends/planted.py",
            "import outrider_adapters",
            "outrider_backends is not allowed to import outrider_adapters",
        ),
        (
            "adapters/outrider_adapters/planted.py",
            "def late():\n    from outrider_backends import planted",
            "outrider_adapters is not allowed to import outrider_backends",
        ),
        (
            "sdk/outrider/types/planted.py",
            "from outrider.interfaces import Target",
            "outrider.types is not allowed to import outrider.interfaces",
        ),
        (
            "sdk/outrider/registry/planted.py",
            "import outrider.loop",
            "outrider.registry is not allowed to import outrider.loop",
        ),
    ],
)
def test_a_planted_import_breaks_its_contract(copy: Path, file: str, line: str, broken: str) -> None:
    planted = copy / file
    planted.write_text((planted.read_text() if planted.exists() else "") + f"\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert broken in done.stdout
