"""Phases, shapes, buffers and answers of graph runners."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import torch
from attrs import field, frozen

from outrider.types.attention import AttnBatch, AttnShape
from outrider.types.counts import RequestCount, TokenCount
from outrider.types.outputs import OutputWants
from outrider.types.proposal import TreeShape
from outrider.types.sampling import SamplingFeatures

__all__ = [
    "Admitted",
    "Axis",
    "BufferSlot",
    "DispatchReport",
    "Phase",
    "PhaseShape",
    "RefusalReason",
    "Refused",
    "RoundShape",
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

    ``trailing``: the shape after the ``axis`` that counts, ``leading``: the shape before it (position axes). ``padding``: the
    value that rows beyond the real ones hold.
    """

    name: str
    axis: Axis
    trailing: tuple[int, ...]
    dtype: torch.dtype
    padding: float | int | bool = 0
    leading: tuple[int, ...] = ()


@frozen
class PhaseShape:
    """How large one call of a body is, as far as the host knows: tokens and requests are different counts.

    ``attention`` is `AttnBatch.shape`: ``None`` for ragged batches and prompts.
    """

    tokens: TokenCount
    requests: RequestCount
    attention: AttnShape | None = None

    @classmethod
    def of(cls, batch: AttnBatch) -> PhaseShape:
        """The shape of a call whose rows attend as ``batch`` says."""
        return cls(batch.num_tokens, batch.num_requests, batch.shape)


@frozen
class RoundShape:
    """How large a whole round is, and all else that the host decides about it: rounds of equal shape run the same operators.

    ``max_length``: host bound of the sequences' tokens. ``proposal``: sizes of what is drafted. ``features`` and ``wants``:
    what the requests of the batch use and ask for.
    """

    requests: RequestCount
    max_length: int
    proposal: TreeShape
    features: SamplingFeatures
    wants: OutputWants


class RefusalReason(Enum):
    """Why a runner does not serve a call through a graph."""

    NOT_CAPTURED = "no graph was captured for the phase"
    TOO_LARGE = "larger than the largest bucket"
    NOT_UNIFORM = "queries per request differ, or belong to a prompt"
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
    """How often each phase ran where, and every refusal by reason, with the newest of each explained."""

    runner: str
    ran: Counter[tuple[Phase, str]] = field(factory=lambda: Counter[tuple[Phase, str]]())
    refused: Counter[tuple[Phase, RefusalReason]] = field(factory=lambda: Counter[tuple[Phase, RefusalReason]]())
    explained: dict[tuple[Phase, RefusalReason], Refused] = field(
        factory=lambda: dict[tuple[Phase, RefusalReason], Refused]()
    )

    def count_refusal(self, phase: Phase, refusal: Refused) -> None:
        """Count one call of ``phase`` that no graph served."""
        self.refused[phase, refusal.reason] += 1
        self.explained[phase, refusal.reason] = refusal
