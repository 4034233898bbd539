"""Writes a description of the package (a dist-info folder) from pyproject.toml, so that its entry points are found.

Usage: python _describe.py ROOT DIRECTORY, with DIRECTORY on PYTHONPATH afterwards. For running a checkout in place,
where nothing can be installed; needs only the standard library.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def describe(root: Path, directory: Path) -> None:
    """Write ``NAME-VERSION.dist-info`` with METADATA and entry_points.txt into ``directory``."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {project['description']}\n{requires}",
        encoding="utf-8",
    )
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    describe(Path(sys.argv[1]), Path(sys.argv[2]))
