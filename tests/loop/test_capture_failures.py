"""Captures ahead that are interrupted, find no memory or cannot be: the engine is usable, and what is lost is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from outrider.drafting.ngram import NgramBuilder
from outrider.interfaces import Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import Acceptance, CaptureRecord, DecodeState, Phase, Proposal, RefusalReason, SamplingParams
from outrider.types.request import Request
from outrider.verification import ExactVerifier
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.loop.captures import PHASES, SAMPLED, SMALL, TARGET, engine, outcome, requests, runner, tapes
from tests.support.misbehaving import RaisingStack, out_of_memory


@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_an_interrupt_leaves_a_usable_engine_that_keeps_what_it_has(after: int) -> None:
    def interrupt(done: int, total: int, captured: Sequence[CaptureRecord]) -> None:
        del total, captured
        if done == after:
            raise KeyboardInterrupt

    made, whole = engine(runner(PHASES)), engine(runner(PHASES))
    with pytest.raises(KeyboardInterrupt):
        made.capture(interrupt)
    assert (made.has_work, dict(made.report.ran)) == (False, {})
    kept = len(made.report.captured)
    plain = engine(EagerRunner())
    assert kept
    assert outcome(made, requests(SAMPLED)[:3]) == outcome(plain, requests(SAMPLED)[:3])
    made.capture()
    assert len(whole.capture().captured) == len(made.report.captured) > kept


def raising(fail: Callable[[int], BaseException | None]) -> tuple[RaisingStack, Target]:
    stack = RaisingStack()
    stack.fail = fail
    return stack, Target(stack, stack.weights)


@pytest.mark.parametrize("rows", [16, 4])  # of a prompt, and of a round of one request
def test_an_interrupt_in_the_middle_of_a_capture(rows: int) -> None:
    left = 1

    def second(count: int) -> BaseException | None:
        nonlocal left
        left -= count == rows
        return KeyboardInterrupt() if count == rows and left < 0 else None

    stack, target = raising(second)
    options = EngineOptions(1, 4, max_prefill_tokens=16)
    made = engine(tapes(), NgramBuilder(3), target=target, options=options)
    with pytest.raises(KeyboardInterrupt):
        made.capture()
    stack.fail = lambda rows: None
    wanted = [Request((5, 9, 2), 12), Request((7,) * 16, 8, SAMPLED)]
    plain = engine(EagerRunner(), NgramBuilder(3), target=target, options=options)
    assert outcome(made, wanted) == outcome(plain, wanted)
    assert made.capture().unserved == ()


def test_memory_that_does_not_suffice_even_for_a_direct_run_costs_that_size_only() -> None:
    stack, target = raising(lambda rows: out_of_memory() if rows in (40, 64) else None)
    made = engine(runner(), None, target=target, options=EngineOptions(2, 4, max_prefill_tokens=40))
    summary = made.capture()
    [lost] = summary.unserved
    assert (lost.phase, lost.refused.reason, lost.sizes) == (Phase.TARGET_PREFILL, RefusalReason.MEMORY, 1)
    assert "prompts of 40 tokens" in lost.refused.numbers
    assert {each.by for each in summary.captured} == {"breakable", "round"}
    stack.fail = lambda rows: None
    assert [len(each) for each in outcome(made, [Request((5, 9, 2), 12)])] == [12]


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("target prefill at 16 tokens", {(Phase.TARGET_PREFILL, "breakable")}),
        ("round at 2 requests", {(Phase.ROUND, "round")}),
        ("", {(Phase.TARGET_PREFILL, "breakable"), (Phase.ROUND, "round"), (Phase.TARGET_DECODE, "phase")}),
    ],
)
def test_what_finds_no_memory_is_told_and_runs_otherwise(part: str, lost: set[tuple[Phase, str]]) -> None:
    made = engine(runner(full=part), None)
    summary = made.capture()
    found = {(each.phase, each.refused.by) for each in summary.unserved}
    assert lost <= found
    assert {each.refused.reason for each in summary.unserved if (each.phase, each.refused.by) in lost} == {
        RefusalReason.MEMORY
    }
    assert bool(summary.captured) is bool(part)
    plain = engine(EagerRunner(), None)
    assert outcome(made, requests(SamplingParams())) == outcome(plain, requests(SamplingParams()))


class Peeking(ExactVerifier):
    """Reads a value, as code that branches on data does."""

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        bool(logits.sum() > 0)
        return super().accept(proposal, logits, state)


def test_rounds_that_cannot_be_captured_are_told_with_the_line_and_their_phases_are_captured() -> None:
    made = build_engine(TARGET, None, attention=SdpaBackend(), runner=tapes(), verifier=Peeking(), options=SMALL)
    summary = made.capture()
    [lost] = summary.unserved
    assert (lost.phase, lost.refused.by, lost.refused.reason) == (Phase.ROUND, "round", RefusalReason.BODY)
    assert lost.sizes == summary.sizes - 3
    assert "test_capture_failures.py" in lost.refused.numbers
    assert {each.by for each in summary.captured} == {"breakable", "phase"}
