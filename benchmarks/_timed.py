"""The loop's parts with a `Ledger` around each: the same answers, and an account of where the time went.

For devices that finish what they are asked before they return (a CPU).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from benchmarks._ledger import Ledger, Part
from outrider.interfaces import (
    AttnBackend,
    AttnPlan,
    BoundDraft,
    Drafter,
    DrafterBuilder,
    DrafterParts,
    KVCache,
    LayerStackProvider,
    Verifier,
)
from outrider.types import (
    Acceptance,
    AttentionSpec,
    AttnBatch,
    AttnCapabilities,
    DecodeState,
    DraftOutput,
    DraftSpec,
    HiddenTap,
    ModelSpec,
    Proposal,
    StackInputs,
    StackOutput,
    TreeShape,
    VerifiedRows,
)

__all__ = ["TimedAttention", "TimedBuilder", "TimedDraft", "TimedStack", "TimedVerifier"]


@frozen(eq=False)
class TimedStack:
    """A target's stack."""

    inner: LayerStackProvider
    ledger: Ledger

    @property
    def spec(self) -> ModelSpec:
        return self.inner.spec

    def embed(self, token_ids: Tensor) -> Tensor:
        with self.ledger.within(Part.TARGET_EMBED):
            return self.inner.embed(token_ids)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        with self.ledger.within(Part.TARGET_LAYERS):
            return self.inner.run_layers(hidden, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        with self.ledger.within(Part.TARGET_LOGITS):
            return self.inner.logits(hidden)


@frozen(eq=False)
class TimedDraft:
    """A bound draft, of the target whose stack ``bound_to`` is timed as well."""

    inner: BoundDraft
    ledger: Ledger
    bound_to: LayerStackProvider

    @property
    def spec(self) -> DraftSpec:
        return self.inner.spec

    def embed(self, token_ids: Tensor) -> Tensor:
        with self.ledger.within(Part.DRAFT_EMBED):
            return self.inner.embed(token_ids)

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        with self.ledger.within(Part.DRAFT_EXTEND):
            return self.inner.extend(embeds, features, inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        with self.ledger.within(Part.DRAFT_STEP):
            return self.inner.step(embeds, state, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        with self.ledger.within(Part.DRAFT_LOGITS):
            return self.inner.logits(hidden)


@frozen(eq=False)
class TimedPlan:
    """A plan; ``part`` tells the target's attention from the draft's."""

    inner: AttnPlan
    ledger: Ledger
    part: Part

    def refresh(self) -> None:
        with self.ledger.within(Part.PLANNING):
            self.inner.refresh()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with self.ledger.within(self.part):
            return self.inner.attend(layer, q, k, v)


@frozen(eq=False)
class TimedAttention:
    """An attention backend; ``num_target_layers`` tells whose batch it is, so it must not be the draft's number too."""

    inner: AttnBackend
    ledger: Ledger
    num_target_layers: int

    @property
    def capabilities(self) -> AttnCapabilities:
        return self.inner.capabilities

    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        part = Part.TARGET_ATTENTION if len(layers) == self.num_target_layers else Part.DRAFT_ATTENTION
        with self.ledger.within(Part.PLANNING):
            return TimedPlan(self.inner.plan(batch, layers, kv), self.ledger, part)


@frozen(eq=False)
class TimedVerifier:
    """A verifier; after it the round commits."""

    inner: Verifier
    ledger: Ledger

    @property
    def chains_only(self) -> bool:
        return self.inner.chains_only

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        with self.ledger.within(Part.ACCEPT):
            acceptance = self.inner.accept(proposal, logits, state)
        self.ledger.turn_to(Part.COMMIT)
        return acceptance


@frozen(eq=False)
class _TimedDrafter:
    """A drafter; after its proposal the round verifies."""

    inner: Drafter
    ledger: Ledger

    @property
    def shape(self) -> TreeShape:
        return self.inner.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return self.inner.taps

    @property
    def runs_on_host(self) -> bool:
        return self.inner.runs_on_host

    def extend(self, rows: VerifiedRows) -> None:
        with self.ledger.within(Part.EXTEND):
            self.inner.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        with self.ledger.within(Part.PROPOSE):
            proposal = self.inner.propose(state)
        self.ledger.turn_to(Part.VERIFY)
        return proposal

    def move_row(self, source: int, destination: int) -> None:
        self.inner.move_row(source, destination)


@frozen(eq=False)
class TimedBuilder:
    """A builder whose drafter is timed; give the inner one a `TimedDraft`."""

    inner: DrafterBuilder
    ledger: Ledger

    @property
    def slack(self) -> int:
        return self.inner.slack

    @property
    def needs_tree(self) -> bool:
        return self.inner.needs_tree

    @property
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype] | None:
        return self.inner.kv_layers

    def build(self, parts: DrafterParts) -> Drafter:
        return _TimedDrafter(self.inner.build(parts), self.ledger)
