"""Phases, shapes, buffers and answers of graph runners."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import torch
from attrs import field, frozen

from outrider.types.counts import RequestCount, TokenCount

__all__ = [
    "Admitted",
    "Axis",
    "BufferSlot",
    "DispatchReport",
    "Phase",
    "PhaseShape",
    "RefusalReason",
    "Refused",
]


class Phase(Enum):
    """What part of the loop a body computes."""

    TARGET_PREFILL = "target prefill"
    TARGET_VERIFY = "target verify"
    TARGET_DECODE = "target decode"
    DRAFT_EXTEND = "draft extend"
    DRAFT_STEP = "draft step"
    ROUND = "round"


class Axis(Enum):
    """What the leading dimension of a buffer counts."""

    TOKENS = "tokens"
    REQUESTS = "requests"
    NONE = "none"


@frozen
class BufferSlot:
    """One named static buffer of a body.

    ``trailing``: the shape after the leading ``axis``. ``padding``: the value that rows beyond the real ones hold.
    """

    name: str
    axis: Axis
    trailing: tuple[int, ...]
    dtype: torch.dtype
    padding: float | int | bool = 0


@frozen
class PhaseShape:
    """How large one call of a body is: tokens and requests are different counts."""

    tokens: TokenCount
    requests: RequestCount


class RefusalReason(Enum):
    """Why a runner does not serve a call through a graph."""

    NOT_CAPTURED = "no graph was captured for the phase"
    TOO_LARGE = "larger than the largest bucket"
    BODY = "the body cannot be captured"
    ATTENTION = "the attention backend cannot be captured"
    DEVICE = "the device has no graphs"
    MEMORY = "out of memory during capture"
    HIDDEN_MODE = "more hidden states asked than were captured"
    CLOSED = "the runner is closed"


@frozen
class Admitted:
    """The runner serves the call as ``key``, with ``padding`` rows added."""

    key: PhaseShape
    padding: TokenCount


@frozen
class Refused:
    """The runner does not serve the call; the caller runs it eagerly, and the refusal is counted."""

    reason: RefusalReason
    numbers: str
    remedy: str


@frozen(eq=False)
class DispatchReport:
    """How often each phase ran where, and every refusal by reason."""

    runner: str
    ran: Counter[tuple[Phase, str]] = field(factory=lambda: Counter[tuple[Phase, str]]())
    refused: Counter[tuple[Phase, RefusalReason]] = field(factory=lambda: Counter[tuple[Phase, RefusalReason]]())
