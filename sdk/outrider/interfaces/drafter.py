"""`Drafter`: whatever proposes tokens; it need not be a model. `DrafterBuilder`: what makes one for an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from attrs import frozen

from outrider.interfaces.attention import AttnBackend
from outrider.interfaces.kv import KVMemory
from outrider.interfaces.runner import GraphRunner
from outrider.interfaces.target import Target
from outrider.types import AttentionSpec, DecodeState, HiddenTap, Proposal, RoundOutcome, TreeShape, VerifiedRows

__all__ = ["Drafter", "DrafterBuilder", "DrafterParts", "ModelFreeDrafter", "RoundFeedback"]


class Drafter(Protocol):
    """Learns from verified rows and proposes a tree of tokens below each root.

    Unless it `runs_on_host`, everything it does inside a round is device only and of static shape per (B, N), and its Python
    runs while a round is captured, not when the capture is replayed: a counter or a list that it keeps would stand still.
    """

    @property
    @abstractmethod
    def shape(self) -> TreeShape:
        """Static sizes of every proposal."""
        ...

    @property
    @abstractmethod
    def taps(self) -> tuple[HiddenTap, ...]:
        """The target features it wants in `VerifiedRows.features`."""
        ...

    @property
    @abstractmethod
    def runs_on_host(self) -> bool:
        """Whether `propose` or `extend` read the device, or keep anything outside of its tensors; the same for its whole life.

        True (an index in Python, a service elsewhere): no round is one graph, though the passes in it are; `propose` and
        `extend` are called exactly once a round, with the running requests and no others, after every earlier result has
        been read; and they are never called for the sake of a capture.
        """
        ...

    @abstractmethod
    def extend(self, rows: VerifiedRows) -> None:
        """Take in verified rows: once per prefill chunk, and at the end of every round."""
        ...

    @abstractmethod
    def propose(self, state: DecodeState) -> Proposal:
        """A proposal for rows 0..B-1 of ``state``; fills `Proposal.draft_lens` within the limits of the draft."""
        ...

    @abstractmethod
    def move_row(self, source: int, destination: int) -> None:
        """Copy what it keeps for batch row ``source`` to ``destination`` (between rounds).

        Row ``source`` may be one whose prompt has come in part, or not yet: a prompt is cut, and rounds of other requests are
        run before its next part. What is kept of it then waits in a row past theirs.
        """
        ...


class RoundFeedback(Protocol):
    """How rounds went, for drafters that adapt."""

    @abstractmethod
    def listen(self, listener: Callable[[RoundOutcome], None], /) -> None:
        """Call ``listener`` with the outcome of every round from now on, as it arrives on the host."""
        ...


@frozen(eq=False)
class DrafterParts:
    """What an engine gives a drafter to build itself from.

    ``num_rows``: the rows that something may be kept for: one for each request that may run at once, and one in which that of a
    prompt that is half run waits (`Drafter.move_row`). ``kv``: where the keys and values of its own layers go, in the pages of
    the engine's page table. `outrider.drafting.DraftMemory.of` makes what a draft model needs of them.
    """

    num_rows: int
    target: Target
    attention: AttnBackend
    runner: GraphRunner
    kv: KVMemory
    feedback: RoundFeedback


class DrafterBuilder(Protocol):
    """Makes a drafter for one engine."""

    @property
    @abstractmethod
    def slack(self) -> int:
        """Slots past a sequence that one round may write: root and drafted tokens in the target, scratch in the draft."""
        ...

    @property
    @abstractmethod
    def needs_tree(self) -> bool:
        """Whether it proposes trees, so that attention must take ancestor masks."""
        ...

    @property
    @abstractmethod
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype] | None:
        """Layers and dtype of the KV it needs, for sizing the memory; ``None`` without a model."""
        ...

    @abstractmethod
    def build(self, parts: DrafterParts) -> Drafter:
        """The drafter.

        Raises:
            BindError: draft and backends do not fit.
            ConfigurationError: sizes that cannot work.
        """
        ...


class ModelFreeDrafter(Protocol):
    """A way to draft that needs no model; what an entry point of ``outrider.drafters`` gives."""

    @abstractmethod
    def __call__(self, length: int, /) -> DrafterBuilder:
        """What builds a drafter of one-hot chains of ``length`` tokens."""
        ...
