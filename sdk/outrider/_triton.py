"""Whether Triton kernels can be built on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path

__all__ = ["missing"]


@cache
def missing() -> str | None:
    """What Triton lacks here, in a clause with what to do; ``None`` where kernels can be built. Imports nothing."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; it comes with torch for CUDA on Linux (pip install triton)"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton builds its launchers with a C compiler and there is none; install gcc, or name one in CC"
    if not Path(str(sysconfig.get_config_var("INCLUDEPY")), "Python.h").is_file():
        return "Triton builds its launchers with Python.h, which is missing; install the headers (python3-dev)"
    return None
