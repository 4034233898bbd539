"""Phases, shapes, buffers and answers of graph runners."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import torch
from attrs import field, frozen

from outrider.errors import GraphError, Problems
from outrider.types.attention import AttnBatch, AttnShape
from outrider.types.counts import RequestCount, TokenCount, counted
from outrider.types.outputs import CaptureHiddenMode, OutputWants
from outrider.types.proposal import TreeShape
from outrider.types.sampling import SamplingFeatures

__all__ = [
    "Admitted",
    "Axis",
    "BufferSlot",
    "CaptureRecord",
    "DispatchReport",
    "GraphSizes",
    "Phase",
    "PhaseShape",
    "RefusalReason",
    "Refused",
    "Role",
    "RoundShape",
]


class Phase(Enum):
    """What part of the loop a body computes; media are encoded before it begins."""

    MEDIA_ENCODE = "media encode"
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

    ``attention`` is `AttnBatch.shape`: ``None`` for ragged batches and prompts. ``hidden``: whether the outputs of every
    token are wanted (FULL) or one row per request (LAST). Where media are encoded, ``requests`` counts these, and there are
    no tokens.

    Raises:
        GraphError: the counts are none of a call: negative, tokens of no request, or not requests × queries; all at once.
    """

    tokens: TokenCount
    requests: RequestCount
    attention: AttnShape | None = None
    hidden: CaptureHiddenMode = CaptureHiddenMode.FULL

    def __attrs_post_init__(self) -> None:
        counts = [("tokens", self.tokens), ("requests", self.requests)]
        expected: int = self.tokens
        if self.attention is not None:
            shape = self.attention
            counts += [("queries", shape.queries), ("positions", shape.max_length), ("pages", shape.pages)]
            counts.append(("tail slots", shape.tail or 0))
            expected = self.requests * shape.queries
        if self.tokens == expected and (self.requests or not self.tokens) and min(count for _, count in counts) >= 0:
            return
        with Problems("no call has such a shape", GraphError) as problems:
            for unit, count in counts:
                if count < 0:
                    problems.add(f"{count} {unit}; give 0 or more")
            if self.attention is not None and self.tokens != expected:
                problems.add(
                    f"{counted(self.tokens, 'token')} of {counted(self.requests, 'request')} with "
                    f"{counted(self.attention.queries, 'query', 'queries')} each; give {expected} tokens (requests × "
                    "queries), or no attention where queries differ"
                )
            if self.tokens and not self.requests:
                problems.add(f"{counted(self.tokens, 'token')} of 0 requests; every token is some request's")

    @classmethod
    def of(cls, batch: AttnBatch, hidden: CaptureHiddenMode = CaptureHiddenMode.FULL) -> PhaseShape:
        """The shape of a call whose rows attend as ``batch`` says."""
        return cls(batch.num_tokens, batch.num_requests, batch.shape, hidden)

    @classmethod
    def of_media(cls, items: int) -> PhaseShape:
        """The shape of a call that encodes ``items`` media at once."""
        return cls(TokenCount(0), RequestCount(items))

    def __str__(self) -> str:
        if not self.tokens:
            return counted(self.requests, "item")
        tokens, requests = counted(self.tokens, "token"), counted(self.requests, "request")
        if self.attention is None:
            return f"{tokens}, {requests}"
        queries = counted(self.attention.queries, "query", "queries")
        return f"{tokens}, {requests} of {queries}, up to {counted(self.attention.max_length, 'position')}"


@frozen
class RoundShape:
    """How large a whole round is, and all else that the host decides about it: rounds of equal shape run the same operators.

    ``max_length``: host bound of the sequences' tokens. ``proposal``: sizes of what is drafted. ``features`` and ``wants``:
    what the requests of the batch use and ask for. A runner may run the round larger than asked, with rows that stand idle
    and longer bounds, up to ``most_requests`` and ``most_length``.
    """

    requests: RequestCount
    max_length: int
    proposal: TreeShape
    features: SamplingFeatures
    wants: OutputWants
    most_requests: RequestCount
    most_length: int

    def __str__(self) -> str:
        drafted = f"{counted(self.proposal.num_tokens, 'drafted token')} each"
        return f"{counted(self.requests, 'request')}, {drafted}, up to {counted(self.max_length, 'position')}"


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
    ROLE = "the worker's role has no such graphs"
    HOST_CODE = "host code runs in the round"
    CLOSED = "the runner is closed"


class Role(Enum):
    """Which part of generation a worker does, and so which graphs it captures."""

    BOTH = "both"
    PREFILL = "prefill"
    """Prompts only: no graphs of rounds, nor of the phases in them."""
    DECODE = "decode"
    """Rounds only: no graphs of prompts."""

    def captures(self, *, prompt: bool) -> bool:
        """Whether graphs of prompts (or else of rounds) are captured."""
        return self is Role.BOTH or (self is Role.PREFILL) == prompt


@frozen
class GraphSizes:
    """At which sizes a runner captures: rounds and their phases at counts of ``requests``, prompts at counts of ``tokens``.

    Empty where it captures none. ``media``: whether it captures bodies of media, at the counts that they name.
    ``tokens_left_out``, ``requests_left_out`` and ``media_left_out``: what it would capture, were it not for its ``role``.
    ``rounds``: whether whole rounds are captured, and not only the phases in them.
    """

    tokens: tuple[TokenCount, ...] = ()
    requests: tuple[RequestCount, ...] = ()
    role: Role = Role.BOTH
    tokens_left_out: tuple[TokenCount, ...] = ()
    requests_left_out: tuple[RequestCount, ...] = ()
    media: bool = False
    media_left_out: bool = False
    rounds: bool = False


@frozen
class Admitted:
    """The runner serves the call as ``key``, with ``padding`` rows added."""

    key: PhaseShape
    padding: TokenCount


@frozen
class Refused:
    """The runner does not serve the call; it goes one step down, and the refusal is counted.

    ``by``: what refused, where a runner has several kinds of graphs ("round", "phase", "breakable", "media").
    """

    reason: RefusalReason
    numbers: str
    remedy: str
    by: str = ""


@frozen
class CaptureRecord:
    """One graph that was captured: ``by`` as in `Refused`, ``nbytes`` of device memory, ``seconds`` it took."""

    phase: Phase
    by: str
    size: str
    seconds: float
    nbytes: int


@frozen(eq=False)
class DispatchReport:
    """How often each phase ran where, every refusal by reason with the newest of each explained, and what was captured.

    ``explained`` is keyed by phase, by who refused and by reason.
    """

    runner: str
    ran: Counter[tuple[Phase, str]] = field(factory=lambda: Counter[tuple[Phase, str]]())
    refused: Counter[tuple[Phase, RefusalReason]] = field(factory=lambda: Counter[tuple[Phase, RefusalReason]]())
    explained: dict[tuple[Phase, str, RefusalReason], Refused] = field(
        factory=lambda: dict[tuple[Phase, str, RefusalReason], Refused]()
    )
    captured: list[CaptureRecord] = field(factory=lambda: list[CaptureRecord]())

    def count_refusal(self, phase: Phase, refusal: Refused) -> None:
        """Count one call of ``phase`` that no graph of this kind served."""
        self.refused[phase, refusal.reason] += 1
        self.explained[phase, refusal.by, refusal.reason] = refusal
