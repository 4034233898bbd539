"""Exits 0 when this interpreter can run the project's scripts as it is; else prints what it lacks and exits 1.

Usage: PYTHON scripts/_satisfied.py ROOT. Needs nothing but the standard library to give its answer.
"""

from __future__ import annotations

import json
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


def lacking(root: Path) -> list[str]:
    """What is missing, one line each."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return ["the packages that pyproject.toml lists (not even 'packaging' is there)"]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found: list[str] = []
    for line in (*project["dependencies"], *(line for extra in extras.values() for line in extra)):
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = distribution(requirement.name).version
        except PackageNotFoundError:
            found.append(f"{line} (not installed)")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{line} (found {version})")
    return found + installed_faults(root, project["entry-points"])


def installed_faults(root: Path, declared: dict[str, dict[str, str]]) -> list[str]:
    """What is wrong with the installation of the project itself."""
    try:
        project = distribution("outrider")
    except PackageNotFoundError:
        return ["outrider (not installed; pip install -e .)"]
    if editable_root(project) != root.as_uri():
        return [f"outrider, installed editable from {root} (it is installed from elsewhere)"]
    found: dict[str, dict[str, str]] = {}
    for entry in project.entry_points:
        if entry.group in declared:
            found.setdefault(entry.group, {})[entry.name] = entry.value
    return [] if found == declared else ["outrider with the entry points of pyproject.toml (pip install -e . again)"]


def editable_root(project: Distribution) -> str | None:
    """Address of the checkout that an editable installation points to."""
    text = project.read_text("direct_url.json")
    source = json.loads(text) if text else {}
    return source.get("url") if source.get("dir_info", {}).get("editable") else None


def main() -> int:
    """Print what is lacking for the checkout that the command line names."""
    found = lacking(Path(sys.argv[1]).resolve())
    for line in found:
        print(f"  - {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
