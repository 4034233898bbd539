"""Parts handed to a place that wants another kind of part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from outrider.interfaces import (
    AttnPlanner,
    BoundDraft,
    Drafter,
    GraphBody,
    GraphRunner,
    LosslessVerifier,
    LossyVerifier,
    RoundStep,
    Target,
    UnboundDraft,
    Verifier,
)
from outrider.registry import RUNNERS, TARGETS, Registry
from outrider.types import (
    Acceptance,
    Admitted,
    AttnBatch,
    DispatchReport,
    Phase,
    PhaseShape,
    Proposal,
    Refused,
    RoundShape,
    StepResult,
)
from outrider.types.state import DecodeState


class Lenient:
    @property
    def loss(self) -> str:
        return "anything may differ"

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        return Acceptance(proposal.parents, state.lengths, proposal.tokens, logits)


class Overclaiming(Lenient):
    @property
    def guarantee(self) -> str:
        return "nearly the same tokens"


class RunnerWithoutClose:
    @property
    def report(self) -> DispatchReport:
        return DispatchReport("wrong")

    def capture(
        self, phase: Phase, body: GraphBody, shapes: Sequence[PhaseShape], planner: AttnPlanner
    ) -> tuple[PhaseShape, ...]:
        return ()

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        raise NotImplementedError

    def run(
        self, phase: Phase, body: GraphBody, inputs: Mapping[str, Tensor], batch: AttnBatch, planner: AttnPlanner
    ) -> Mapping[str, Tensor]:
        return body(inputs, planner.plan(batch).attend)

    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        return step(shape.max_length)


class RunnerThatAnswersBool(RunnerWithoutClose):
    def admit(self, phase: Phase, shape: PhaseShape) -> bool:  # error: [override]
        return True

    def close(self) -> None: ...


def wants_lossless(verifier: LosslessVerifier) -> None: ...


def wants_bound(draft: BoundDraft) -> None: ...


def mixes_up_verifiers(lossy: LossyVerifier, some: Verifier) -> None:
    wants_lossless(lossy)  # error: [arg-type]
    wants_lossless(some)  # error: [arg-type]
    wants_lossless(Lenient())  # error: [arg-type]
    wants_lossless(Overclaiming())  # error: [arg-type]


def drafts_before_binding(draft: UnboundDraft, target: Target, hidden: Tensor) -> None:
    wants_bound(draft)  # error: [arg-type]
    draft.logits(hidden)  # error: [attr-defined]
    draft.bind(target).bind(target)  # error: [attr-defined]
    drafter: Drafter = draft.bind(target)  # error: [assignment]
    del drafter


def assumes_a_power(target: Target, hidden: Tensor) -> Tensor:
    target.language_model(hidden)  # error: [attr-defined]
    return target.weights.head  # error: [union-attr]


def assumes_admission(runner: GraphRunner, phase: Phase, shape: PhaseShape) -> PhaseShape:
    return runner.admit(phase, shape).key  # error: [union-attr]


without_close: GraphRunner = RunnerWithoutClose()  # error: [assignment]
answers_bool: GraphRunner = RunnerThatAnswersBool()  # error: [assignment]
Registry().register(RUNNERS, "wrong", RunnerWithoutClose)  # error: [arg-type]
Registry().register(TARGETS, "wrong", RunnerThatAnswersBool)  # error: [arg-type]
