"""Parts handed to a place that wants another kind of part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from outrider.graphs import RunnerOptions, media_calls
from outrider.interfaces import (
    AttnPlanner,
    BoundDraft,
    Drafter,
    GraphBody,
    GraphRunner,
    LosslessVerifier,
    LossyVerifier,
    MediaBody,
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
    BodyCalls,
    DecodeState,
    DispatchReport,
    GraphSizes,
    Phase,
    PhaseShape,
    Proposal,
    Refused,
    RoundShape,
    StepResult,
)


class Lenient:
    @property
    def loss(self) -> str:
        return "anything may differ"

    @property
    def chains_only(self) -> bool:
        return False

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
        raise NotImplementedError

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


class RunnerThatTakesNoOptions(RunnerWithoutClose):
    def close(self) -> None: ...


def make_runner_without_close(options: RunnerOptions) -> RunnerWithoutClose:
    del options
    return RunnerWithoutClose()


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
Registry().register(RUNNERS, "wrong", make_runner_without_close)  # error: [misc]
Registry().register(RUNNERS, "wrong", RunnerThatTakesNoOptions)  # error: [misc]
Registry().create(RUNNERS, "wrong")  # error: [arg-type]
Registry().members(RUNNERS)  # error: [arg-type]
Registry().register(TARGETS, "wrong", RunnerThatAnswersBool)  # error: [misc]
