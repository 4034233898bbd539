"""Attention backends and ways of running that the GPU benchmarks choose from, made without installed entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import torch

from outrider.graphs import GraphOptions, LadderRunner, Steps
from outrider.interfaces import AttnBackend, GraphRunner
from outrider.types import Role
from outrider_backends import triton
from outrider_backends.cuda_graph import CudaGraphMedium
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium

__all__ = ["EAGER", "GRAPHS", "WHOLE_ROUND", "attention", "attention_names", "runner"]

EAGER = "eager"
WHOLE_ROUND = "whole round"

GRAPHS: Mapping[str, Steps] = {
    "breakable": Steps(rounds=False, phases=False),
    "graph per phase": Steps(rounds=False),
    WHOLE_ROUND: Steps(),
}
"""The steps of the ladder by name, each with those below it, since prompts go through the breakable one."""


def attention_names(device: torch.device) -> tuple[str, ...]:
    """The backends that run on ``device``, the default first."""
    return ("triton", "sdpa") if device.type == "cuda" and find_spec("triton") is not None else ("sdpa",)


def attention(name: str) -> AttnBackend:
    """A new backend, by one of `attention_names`.

    Raises:
        ConfigurationError: Triton is not installed.
    """
    return triton.create() if name == "triton" else SdpaBackend()


def runner(name: str, role: Role = Role.BOTH) -> GraphRunner:
    """A new runner: `EAGER`, or one of `GRAPHS`, with a memory pool of its own so that what it takes can be told.

    CUDA graphs on a CUDA device, tapes elsewhere.
    """
    if name == EAGER:
        return EagerRunner()
    return LadderRunner(name, (CudaGraphMedium(), TapeMedium()), GRAPHS[name], GraphOptions(role=role))
