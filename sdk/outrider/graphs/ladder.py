"""`LadderRunner`: a `GraphRunner` over any medium; what one kind of graph does not serve goes one step down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from attrs import evolve
from torch import Tensor

from outrider.errors import ClosedError
from outrider.graphs.breakables import BreakableGraphs
from outrider.graphs.buckets import request_buckets, token_buckets
from outrider.graphs.capturing import Capturer
from outrider.graphs.direct import DirectCalls
from outrider.graphs.media_graphs import MediaGraphs
from outrider.graphs.options import HIDDEN_MODES, GraphOptions, Steps
from outrider.graphs.phases import PhaseGraphs
from outrider.graphs.rounds import RoundContext, RoundGraphs
from outrider.interfaces import AttnPlanner, GraphBody, GraphMedium, MediaBody, RoundStep
from outrider.types import (
    Admitted,
    AttnBatch,
    BodyCalls,
    CaptureHiddenMode,
    DispatchReport,
    GraphSizes,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    Role,
    RoundShape,
    StepResult,
)

__all__ = ["LadderRunner"]

S = TypeVar("S")


class LadderRunner:
    """Tries, for a round: one graph of it whole; for a phase: its graph, then its segments with eager attention between them;
    for media: the graph of their number.

    What none of them serves is run directly. Every refusal is counted and explained, in order. Not thread-safe.
    """

    def __init__(
        self, name: str, media: Sequence[GraphMedium], steps: Steps | None = None, options: GraphOptions | None = None
    ) -> None:
        """``media``: the first that takes the model's device captures; ``name`` as reports have it."""
        self._options = GraphOptions() if options is None else options
        self._steps = Steps() if steps is None else steps
        self._report = DispatchReport(runner=name)
        options, modes = self._options, {**HIDDEN_MODES, **self._options.hidden_modes}
        self._requests = request_buckets() if options.requests is None else options.requests
        self._tokens = token_buckets() if options.tokens is None else options.tokens
        self._capturer = capturer = Capturer(media, self._report, on_demand=options.on_demand)
        self._rounds = RoundGraphs(capturer, self._requests)
        self._breakables = BreakableGraphs(capturer, self._tokens, modes, poison=options.poison)
        self._phases = PhaseGraphs(capturer, self._requests, modes, poison=options.poison)
        self._media = MediaGraphs(capturer, poison=options.poison)
        self._direct = DirectCalls()
        self._closed = False

    @property
    def report(self) -> DispatchReport:
        """What ran where, what was refused why, and what was captured; live."""
        return self._report

    @property
    def sizes(self) -> GraphSizes:
        """At which sizes it captures, its role considered."""
        role = self._options.role
        tokens = self._tokens.counts if self._steps.breakable else ()
        requests = self._requests.counts
        prompts, rounds = role.captures(prompt=True), role.captures(prompt=False)
        return GraphSizes(
            tokens=tokens if prompts else (),
            requests=requests if rounds else (),
            role=role,
            tokens_left_out=() if prompts else tokens,
            requests_left_out=() if rounds else requests,
            media=prompts,
            media_left_out=not prompts,
            rounds=rounds and self._steps.rounds,
        )

    @torch.inference_mode()
    def capture(
        self, phase: Phase, body: GraphBody, shapes: Sequence[PhaseShape], planner: AttnPlanner
    ) -> tuple[PhaseShape, ...]:
        """Capture ``body`` at the size of each of ``shapes``, on the first step that takes it; sizes once, in the order asked.

        A shape that no graph can serve is left out, and counted in the report.

        Raises:
            CaptureError: the body cannot be captured; every line that prevents it is named.
            ClosedError: the runner is closed.
        """
        self._check_open(f"capture {phase.value}")
        captured: dict[PhaseShape, None] = {}
        for asked in shapes:
            shape = _as_captured(asked, planner)
            for step in self._allowed(phase, shape, self._kinds_of(phase)):
                made = step if isinstance(step, Refused) else step.make(phase, body, shape, planner)
                if not isinstance(made, Refused):
                    captured[made] = None
                    break
                self._report.count_refusal(phase, made)
        return tuple(captured)

    def capturing(self) -> AbstractContextManager[None]:
        """Within it every call captures what it needs, ``on_demand`` or not.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("capture")
        return self._capturer.capturing()

    def admit(self, phase: Phase, shape: PhaseShape) -> Admitted | Refused:
        """Whether a graph serves a call of ``shape``, and at which size: a function of the shape and what was captured.

        With ``on_demand`` a shape is admitted that would be captured when it is run. A refusal is the last step's.
        """
        if self._closed:
            return Refused(RefusalReason.CLOSED, f"{phase.value} of {shape}", "build a new runner")
        answer: Admitted | Refused = _no_step(phase, shape)
        for step in self._allowed(phase, shape, self._kinds_of(phase)):
            answer = step if isinstance(step, Refused) else step.admit(phase, shape)
            if isinstance(answer, Admitted):
                break
        return answer

    @torch.inference_mode()
    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        """Outputs of ``body``, by replay or directly; valid until the next call of the same phase or body.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
            ConformanceError: what it returns is not.
        """
        self._check_open(f"run {phase.value}")
        context = self._rounds.context
        if context is not None:
            return self._run_in_round(context, phase, body, inputs, batch, planner, rows)
        hidden = CaptureHiddenMode.FULL if rows is None else CaptureHiddenMode.LAST
        shape = _as_captured(PhaseShape.of(batch, hidden), planner)
        for step in self._allowed(phase, shape, self._attending):
            made = step if isinstance(step, Refused) else step.serve(phase, body, inputs, batch, planner, rows, shape)
            if isinstance(made, Refused):
                self._report.count_refusal(phase, made)
                continue
            assert not isinstance(step, Refused)
            self._report.ran[phase, step.by] += 1
            return made
        outputs = self._direct.run(phase, body, inputs, batch, BodyCalls(planner.plan(batch).attend), rows)
        self._report.ran[phase, "eager"] += 1
        return outputs

    @torch.inference_mode()
    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Outputs of ``body``, by replay or directly; valid until the next call of the same body.

        Raises:
            ClosedError: the runner is closed.
            GraphError: ``inputs`` are not what the body declares.
            ConformanceError: what it returns is not.
        """
        phase = Phase.MEDIA_ENCODE
        self._check_open(f"run {phase.value}")
        made = self._refused_by_role(phase, None) or self._media.serve(body, inputs)
        if not isinstance(made, Refused):
            self._report.ran[phase, self._media.by] += 1
            return made
        self._report.count_refusal(phase, made)
        outputs = self._direct.run_media(body, inputs)
        self._report.ran[phase, "eager"] += 1
        return outputs

    @torch.inference_mode()
    def run_round(self, shape: RoundShape, step: RoundStep) -> StepResult:
        """The round, replayed where a graph of its shape exists; valid until the next round.

        A round that cannot be captured whole is run directly, its phases by `run`. The result may have rows after those asked.

        Raises:
            ClosedError: the runner is closed.
        """
        self._check_open("run a round")
        if not self._steps.rounds:
            return step(shape)
        served = self._round_key(shape)
        if not isinstance(served, Refused):
            made = self._rounds.serve(served, step)
            if not isinstance(made, Refused):
                result, replayed = made
                self._report.ran[Phase.ROUND, self._rounds.by if replayed else "eager"] += 1
                return result
            served = made
        self._report.count_refusal(Phase.ROUND, served)
        return step(shape)

    def close(self) -> None:
        """Free every graph and buffer; a later `run`, `run_round` or `capture` raises `ClosedError`. May be called twice."""
        self._closed = True
        self._rounds.close()
        self._phases.close()
        self._breakables.close()
        self._media.close()
        self._direct.clear()

    def _run_in_round(
        self,
        context: RoundContext,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        planner: AttnPlanner,
        rows: Tensor | None,
    ) -> Mapping[str, Tensor]:
        plan = planner.captured_plan(batch) if context.captures else planner.plan(batch)
        context.plans.append(plan)
        outputs = self._direct.run(phase, body, inputs, batch, BodyCalls(plan.attend, context.outside()), rows)
        if not context.captures:
            self._report.ran[phase, "eager"] += 1
        return outputs

    def _round_key(self, shape: RoundShape) -> RoundShape | Refused:
        if not self._options.role.captures(prompt=False):
            return self._not_its_role(f"rounds of {shape}", self._rounds.by)
        return self._rounds.bucket_of(shape)

    @property
    def _attending(self) -> Sequence[PhaseGraphs | BreakableGraphs]:
        """What a call that attends goes through, in order."""
        steps: list[PhaseGraphs | BreakableGraphs] = []
        if self._steps.phases:
            steps.append(self._phases)
        if self._steps.breakable:
            steps.append(self._breakables)
        return steps

    def _kinds_of(self, phase: Phase) -> Sequence[PhaseGraphs | BreakableGraphs | MediaGraphs]:
        return [self._media] if phase is Phase.MEDIA_ENCODE else self._attending

    def _allowed(self, phase: Phase, shape: PhaseShape, steps: Sequence[S]) -> Sequence[S | Refused]:
        """``steps``, or why the role allows none of them."""
        refused = self._refused_by_role(phase, shape)
        return steps if refused is None else [refused]

    def _refused_by_role(self, phase: Phase, shape: PhaseShape | None) -> Refused | None:
        prompt = phase in (Phase.TARGET_PREFILL, Phase.MEDIA_ENCODE)
        prompt = prompt or (phase is Phase.DRAFT_EXTEND and shape is not None and shape.attention is None)
        if self._options.role.captures(prompt=prompt):
            return None
        return self._not_its_role(phase.value if shape is None else f"{phase.value} of {shape}", "")

    def _not_its_role(self, what: str, by: str) -> Refused:
        role = self._options.role.value
        remedy = (
            f"nothing need be done where another worker does it; else build the runner with role '{Role.BOTH.value}'"
        )
        return Refused(RefusalReason.ROLE, f"{what}, on a worker for {role} only", remedy, by)

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise ClosedError(f"cannot {verb}: the {self._report.runner} runner was closed; build a new one")


def _as_captured(shape: PhaseShape, planner: AttnPlanner) -> PhaseShape:
    """``shape``, of the longest sequences there are where the attention backend serves any length at its own cost."""
    if shape.attention is None or not planner.capabilities.any_length:
        return shape
    most = max(shape.attention.pages * planner.page_size, shape.attention.max_length)
    return evolve(shape, attention=evolve(shape.attention, max_length=most))


def _no_step(phase: Phase, shape: PhaseShape) -> Refused:
    remedy = "let the runner try graphs of phases, or in segments"
    return Refused(RefusalReason.NOT_CAPTURED, f"{phase.value} of {shape}; only whole rounds are captured", remedy)
