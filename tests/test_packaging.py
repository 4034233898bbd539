"""The wheel is complete: what it holds, and that it works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import cast

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREES = {"sdk": "outrider", "backends": "outrider_backends", "adapters": "outrider_adapters"}
PROJECT = cast("dict[str, object]", tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
DECLARED = cast("dict[str, dict[str, str]]", PROJECT["entry-points"])

# One heavy fixture: tests that share it run in one process.
pytestmark = pytest.mark.xdist_group("packaging")

FIND_EVERYTHING = """
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path
import outrider, outrider_adapters, outrider_backends
site = Path(sys.argv[1])
for package in (outrider, outrider_adapters, outrider_backends):
    assert Path(package.__file__).is_relative_to(site), package.__file__
assert Path(str(distribution("outrider").locate_file("outrider"))).is_relative_to(site)
for group in sys.argv[2:]:
    for entry in entry_points(group=group):
        if entry.dist is None or entry.dist.name != "outrider":
            continue
        entry.load()
        module = sys.modules[entry.module].__file__
        assert Path(module).is_relative_to(site), module
        print(f"{group}:{entry.name}={entry.value}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as ``python -m build`` does, with the build tools at hand."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = out.glob("outrider-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel installed into it, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def sources() -> set[str]:
    """What the wheel must hold: every file of the three packages, as the checkout has it."""
    return {
        str(file.relative_to(ROOT / tree))
        for tree, package in TREES.items()
        for file in (ROOT / tree / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
    }


def test_it_holds_the_packages_with_their_types_and_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == sources()
    needed = {f"{package}/py.typed" for package in TREES.values()}
    for model in ("tiny-llama", "tiny-eagle3", "tiny-eagle", "tiny-llava", "tiny-llava-eagle3"):
        needed |= {f"outrider_adapters/data/{model}/{file}" for file in ("config.json", "model.safetensors")}
    needed |= {f"outrider_adapters/data/tiny-llava/{file}" for file in ("processor_config.json", "chat_template.jinja")}
    assert needed <= packaged
    assert {name.split("/")[0] for name in packaged} == set(TREES.values())


def test_it_declares_its_entry_points_license_and_requirements(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [listed] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        parser = ConfigParser(delimiters=("=",))
        parser.read_string(archive.read(listed).decode())
        metadata = archive.read(listed.replace("entry_points.txt", "METADATA")).decode()
        assert any("/licenses/LICENSE" in name for name in archive.namelist())
    found = {group: dict(parser[group]) for group in parser.sections()}
    assert found == DECLARED | {"console_scripts": PROJECT["scripts"]}
    for requirement in cast("list[str]", PROJECT["dependencies"]):
        assert f"Requires-Dist: {requirement}" in metadata


def test_installed_elsewhere_it_finds_every_part_there(site: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", FIND_EVERYTHING, str(site), *DECLARED]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = {f"{group}:{name}={value}" for group, of in DECLARED.items() for name, value in of.items()}
    assert set(done.stdout.split()) == wanted
