"""The tape: CUDA-graph semantics on a CPU, so that a body can be proved capturable without a GPU."""

from __future__ import annotations

from outrider_backends.tape.pool import TapePool
from outrider_backends.tape.runner import TapeRunner, create
from outrider_backends.tape.tape import Tape

__all__ = ["Tape", "TapePool", "TapeRunner", "create"]
