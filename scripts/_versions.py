"""Prints the versions of Python, torch, CUDA, the driver and the cards; exits 1 where a GPU run is pointless."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version


def missing() -> list[str]:
    """Names of the project's requirements that are not installed."""
    found: list[str] = []
    for requirement in requires("outrider") or ():
        name = requirement.split(";")[0].strip()
        for mark in "<>=!~[ ":
            name = name.split(mark)[0]
        try:
            version(name)
        except PackageNotFoundError:
            found.append(name)
    return found


def main() -> int:
    """Print one line each."""
    lacking = missing()
    if lacking:
        print(f"{sys.executable} lacks: {', '.join(lacking)}; install them, or put them on PYTHONPATH")
        return 1
    import torch

    print(f"python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    for name in ("triton", "transformers", "flashinfer-python"):
        try:
            print(f"{name} {version(name)}")
        except PackageNotFoundError:
            print(f"{name} not installed")
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false")
        return 1
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        print(f"GPU {index}: {card.name}, {card.total_memory / 2**30:.0f} GiB, sm_{card.major}{card.minor}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
