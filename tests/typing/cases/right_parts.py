"""Implementations that fit their seams, and parts that are put together as they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from outrider.graphs import RunnerOptions, media_calls
from outrider.interfaces import (
    AttnPlanner,
    BoundDraft,
    GraphBody,
    GraphRunner,
    LayerStackProvider,
    LosslessVerifier,
    LossyVerifier,
    MediaBody,
    RoundStep,
    Target,
    UnboundDraft,
    Verifier,
)
from outrider.registry import RUNNERS, Registry
from outrider.types import (
    Acceptance,
    Admitted,
    AttnBatch,
    BodyCalls,
    DecodeState,
    DispatchReport,
    GraphSizes,
    HiddenTap,
    ModelSpec,
    Phase,
    PhaseShape,
    Proposal,
    RefusalReason,
    Refused,
    RequestCount,
    Role,
    RoundShape,
    StackInputs,
    StackOutput,
    StepResult,
    TokenCount,
)


class Stack:
    """Satisfies `LayerStackProvider` without inheriting from it."""

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec("right", 8, 16, (), 32, torch.float32, torch.device("cpu"))

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden, tuple(hidden for _ in inputs.taps))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class InheritingStack(LayerStackProvider):
    """Inherits: then mypy also names what is left abstract."""

    @property
    def spec(self) -> ModelSpec:
        return Stack().spec

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class Careful:
    @property
    def guarantee(self) -> Literal["same distribution"]:
        return "same distribution"

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        return Acceptance(proposal.parents, state.lengths, proposal.tokens, logits.isfinite().all(-1).all(-1))


class Lenient:
    @property
    def loss(self) -> str:
        return "takes any token among the ten most probable"

    @property
    def chains_only(self) -> bool:
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        return Careful().accept(proposal, logits, state)


class Runner:
    @property
    def report(self) -> DispatchReport:
        return DispatchReport("right")

    @property
    def sizes(self) -> GraphSizes:
        return GraphSizes()

    def capture(
        self, phase: Phase, body: GraphBody, shapes: Sequence[PhaseShape], planner: AttnPlanner
    ) -> tuple[PhaseShape, ...]:
        return ()

    def capturing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        return Refused(RefusalReason.NOT_CAPTURED, "", "")

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        outputs = body(inputs, BodyCalls(planner.plan(batch).attend))
        return outputs if rows is None else {name: rows_of[rows] for name, rows_of in outputs.items()}

    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return body(inputs, media_calls())

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        return step(shape)

    def close(self) -> None:
        return None


def make_runner(options: RunnerOptions) -> Runner:
    del options
    return Runner()


def wants_lossless(verifier: LosslessVerifier) -> str:
    return verifier.guarantee


def wants_any(verifier: Verifier) -> None: ...


def wants_bound(draft: BoundDraft) -> None: ...


stack: LayerStackProvider = Stack()
target = Target(stack=InheritingStack())
wants_lossless(Careful())
wants_any(Lenient())
lossy: LossyVerifier = Lenient()
runner: GraphRunner = Runner()
Registry().register(RUNNERS, "right", make_runner)
made: GraphRunner = Registry().create(RUNNERS, "right", RunnerOptions(Role.DECODE))
shape = PhaseShape(tokens=TokenCount(10), requests=RequestCount(2))


def bind(draft: UnboundDraft, inputs: StackInputs) -> StackInputs:
    wants_bound(draft.bind(target))
    return StackInputs(inputs.positions, inputs.attend, (HiddenTap.at(2), HiddenTap.final_norm()))
