"""Runs tests marked gpu: those that compile kernels in several processes, or the others, which measure memory, in one.

Usage: _gpu_tests.py compiling|others PYTEST_INI ROOT FILE...
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

_COMPILING = ("tests/backends/triton/", "tests/adapters/nn/fused/", "tests/sampling/test_noise_kernel.py")
_MOST_PROCESSES = 8


def main(which: str, ini: str, root: str, files: Sequence[str]) -> int:
    """The worst exit status of all processes that run ``which`` of the tests in ``files``."""
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ini,
        "--rootdir",
        root,
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        "-ra",
    ]
    compiling = [name for name in files if name.startswith(_COMPILING)] if which == "compiling" else []
    others = [name for name in files if not name.startswith(_COMPILING)] if which == "others" else []
    worst = 0
    if compiling:
        found = subprocess.run(
            [*pytest, "--collect-only", "-q", *compiling], capture_output=True, text=True, check=False
        )
        tests = [line for line in found.stdout.splitlines() if re.match(r"\S+\.py::", line)]
        shards = max(1, min(_MOST_PROCESSES, (os.cpu_count() or 2) // 2))
        running = [
            subprocess.Popen(
                [*pytest, "-q", *tests[number::shards]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for number in range(shards)
            if tests[number::shards]
        ]
        for process in running:
            print(process.communicate()[0], flush=True)
            worst = max(worst, process.returncode)
        if not tests:
            print(found.stdout, found.stderr, flush=True)
            worst = 1
    if others:
        worst = max(worst, subprocess.run([*pytest, "--durations=10", *others], check=False).returncode)
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
