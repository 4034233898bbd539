"""Drafters that run on the host: never captured, told everything, called once a round, and their rounds are accounted for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from attrs import evolve, field, frozen

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.drafting import histories
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder
from outrider.errors import OutriderError
from outrider.generation.report import render_capture, render_report
from outrider.graphs import GraphOptions, request_buckets
from outrider.interfaces import Drafter, DrafterBuilder, DrafterParts, GraphRunner, LoadOptions, Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.text.automaton import TokenAutomaton
from outrider.types import DecodeState, DispatchReport, Phase, Proposal, RefusalReason, RequestId
from outrider.types.request import Request
from outrider_backends.cuda_graph import cuda_graph_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.cases_data import greedy_cases
from tests.support.drafters import WrappedDrafter
from tests.support.engines import Outcome, drive, outcomes, run
from tests.support.host_drafter import DeclaredBuilder, HostBuilder
from tests.support.reference import greedy
from tests.support.runners import RUNNERS
from tests.support.toy_drafts import SelfDraft
from tests.support.toy_target import ToySizes, ToyStack

STACK = ToyStack(ToySizes(), seed=4)
TARGET = Target(STACK, STACK.weights)
OPTIONS = EngineOptions(max_batch_size=3, page_size=8, max_length=60, max_prefill_tokens=7)
REQUESTS = [
    Request(prompt, count)
    for prompt, count in (
        ((7, 2, 7, 2), 24),
        ((5,), 3),
        (tuple(range(3, 15)), 12),
        ((9, 9), 1),
        ((30, 31, 30), 16),
        ((1, 2, 3), 8),
        ((8, 40), 20),
    )
]
HOST = (Phase.ROUND, RefusalReason.HOST_CODE)


def engine(builder: DrafterBuilder | None, runner: GraphRunner, ahead: int = 0, batch: int = 3) -> Engine:
    options = evolve(OPTIONS, rounds_in_flight=ahead, max_batch_size=batch)
    return build_engine(TARGET, builder, attention=SdpaBackend(), runner=runner, options=options)


def texts(found: list[Outcome]) -> list[tuple[int, ...]]:
    return [tuple(outcome.token_ids) for outcome in found]


def rounds_of(report: DispatchReport) -> int:
    """Every round verifies once, wherever."""
    return sum(count for (phase, _), count in report.ran.items() if phase is Phase.TARGET_VERIFY)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("runner", RUNNERS)
def test_it_is_told_everything_and_called_once_a_round(runner: str, ahead: int) -> None:
    builder = HostBuilder()
    made = engine(builder, RUNNERS[runner](), ahead)
    found = run(made, REQUESTS)
    assert texts(found) == [greedy(TARGET, request.prompt, request.max_new_tokens) for request in REQUESTS]
    assert max(length for outcome in found for length in outcome.accept_lengths) >= 3
    calls = builder.calls
    assert calls["propose"] == calls["extend"] == rounds_of(made.report)
    assert calls["move"] > 0
    plain = HostBuilder()
    assert run(engine(plain, EagerRunner(), ahead), REQUESTS) == found
    assert plain.calls["propose"] == calls["propose"], "no round that does not count"


@pytest.mark.parametrize("runner", ["eager", "rounds"])
def test_requests_that_come_and_are_cancelled_while_others_run(runner: str) -> None:
    builder = HostBuilder()
    made = engine(builder, RUNNERS[runner](), ahead=1)
    running = [made.submit(request) for request in REQUESTS[:4]]
    done: dict[RequestId, Outcome] = {}
    for _ in range(3):
        outcomes(made.step(), done)
    made.cancel(running[0])
    made.submit(REQUESTS[4])
    made.admit()  # its row was given and its prompt not run when another row moves
    made.cancel(running[2])
    last = made.submit(REQUESTS[6])
    drive(made, done)
    assert tuple(done[last].token_ids) == greedy(TARGET, REQUESTS[6].prompt, REQUESTS[6].max_new_tokens)
    assert builder.calls["propose"] == rounds_of(made.report)


def test_the_passes_inside_are_graphs_and_the_rounds_are_explained() -> None:
    made = engine(HostBuilder(), RUNNERS["rounds"]())
    run(made, REQUESTS)
    report = made.report
    assert report.ran[Phase.TARGET_VERIFY, "phase"] == rounds_of(report) == report.refused[HOST]
    assert not [phase for phase, _ in report.ran if phase is Phase.ROUND]
    assert not [record for record in report.captured if record.phase is Phase.ROUND]
    said = [line for line in render_report(report).splitlines() if "host code" in line]
    assert said == [
        f"round, no round graph: {report.refused[HOST]} times: host code runs in the round (1 request, 3 drafted tokens each, "
        "up to 21 positions; the drafter runs on the host); nothing need be done: the passes in it are captured on their own; "
        "only a drafter of operators on tensors alone can be in a graph"
    ]


@pytest.mark.parametrize("runner", ["eager", "phases", "breakable"])
def test_nothing_is_refused_where_no_round_is_ever_captured(runner: str) -> None:
    made = engine(HostBuilder(), RUNNERS[runner]())
    run(made, REQUESTS[:2])
    assert not made.report.refused[HOST]


def test_rounds_with_token_constraints_are_explained_too() -> None:
    made = engine(None, RUNNERS["rounds"]())
    constraint = TokenAutomaton.from_sequences([(4, 5, 6, 7)], 48, (47,)).constraint()
    made.submit(Request((7, 2), 4), constraint=constraint)
    made.submit(Request((7, 2), 6))
    drive(made)
    refused = made.report.explained[Phase.ROUND, "round", RefusalReason.HOST_CODE]
    assert "2 requests" in refused.numbers
    assert "1 token constraint among them" in refused.numbers
    assert 0 < made.report.refused[HOST] < rounds_of_plain(made.report), "what runs without it is no such round"


def rounds_of_plain(report: DispatchReport) -> int:
    inside = sum(count for (phase, _), count in report.ran.items() if phase is Phase.TARGET_DECODE)
    return inside + report.ran[Phase.ROUND, "round"]


def test_capturing_ahead_never_calls_it_and_leaves_no_pass_to_capture() -> None:
    builder = HostBuilder()
    made = engine(builder, RUNNERS["rounds"]())
    summary = made.capture()
    assert not builder.calls
    assert {record.phase for record in summary.captured} == {Phase.TARGET_PREFILL, Phase.TARGET_VERIFY}
    (unserved,) = summary.unserved
    assert (unserved.phase, unserved.refused.reason) == HOST
    assert "host code runs in the round" in render_capture(summary)
    found = run(made, REQUESTS)
    assert texts(found) == [greedy(TARGET, request.prompt, request.max_new_tokens) for request in REQUESTS]
    assert made.report.captured == list(summary.captured)
    assert not [what for what in made.report.ran if what[1] == "eager"]


BUILDERS: dict[str, DrafterBuilder] = {
    "chain": ChainBuilder(SelfDraft(TARGET, STACK), 2),
    "tree": StaticTreeBuilder(SelfDraft(TARGET, STACK), (0, 0, 1)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_draft_model_on_the_host_drafts_what_it_drafts_on_the_device(name: str) -> None:
    made = engine(DeclaredBuilder(BUILDERS[name], runs_on_host=True), RUNNERS["rounds"]())
    summary = made.capture()
    found = run(made, REQUESTS)
    assert found == run(engine(BUILDERS[name], EagerRunner()), REQUESTS)
    verified = [record for record in made.report.captured if record.phase is Phase.TARGET_VERIFY]
    assert verified == [record for record in summary.captured if record.phase is Phase.TARGET_VERIFY]
    assert made.report.ran[Phase.DRAFT_STEP, "phase"] > 0


class _Counting(WrappedDrafter):
    def __init__(self, inner: Drafter, calls: Counter[str]) -> None:
        super().__init__(inner)
        self._calls = calls

    def propose(self, state: DecodeState) -> Proposal:
        self._calls["propose"] += 1
        return super().propose(state)


@frozen(eq=False)
class _CountingBuilder(DeclaredBuilder):
    calls: Counter[str] = field(factory=Counter[str])

    def build(self, parts: DrafterParts) -> Drafter:
        return _Counting(super().build(parts), self.calls)


def test_python_of_a_drafter_that_does_not_say_so_stands_still() -> None:
    counted = _CountingBuilder(BUILDERS["chain"], runs_on_host=False)
    made = engine(counted, RUNNERS["rounds"](), batch=1)
    run(made, [Request((7, 2, 7), 30)] * 2)
    assert counted.calls["propose"] < made.report.ran[Phase.ROUND, "round"]


def test_a_host_drafter_that_does_not_say_so_is_found_out() -> None:
    made = engine(DeclaredBuilder(HostBuilder(), runs_on_host=False), RUNNERS["rounds"](), ahead=1)
    with pytest.raises((AssertionError, OutriderError)):
        run(made, REQUESTS)


def test_histories_are_the_sequences_with_their_roots() -> None:
    seen: list[list[list[int]]] = []

    class Watching(WrappedDrafter):
        def propose(self, state: DecodeState) -> Proposal:
            seen.append(histories(state))
            for row, (history, length) in enumerate(zip(seen[-1], state.lengths, strict=True)):
                assert torch.tensor(history).equal(state.tokens[row, : int(length) + 1])
                assert history[-1] == int(state.roots[row])
            return super().propose(state)

    @frozen(eq=False)
    class Watched(DeclaredBuilder):
        def build(self, parts: DrafterParts) -> Drafter:
            return Watching(super().build(parts))

    (found,) = run(engine(Watched(BUILDERS["chain"], runs_on_host=True), EagerRunner()), [Request((7, 2), 9)])
    whole = [7, 2, *found.token_ids]
    assert [history for (history,) in seen] == [whole[: len(history)] for (history,) in seen]


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [0, 2])
def test_it_is_told_everything_on_a_card(ahead: int) -> None:
    cases = greedy_cases()[:8]
    target = registry.load_target(
        Checkpoint(registry.pair("tiny").target), LoadOptions(torch.device("cuda", 0), torch.float32)
    )
    builder = HostBuilder()
    runner = cuda_graph_runner(GraphOptions(requests=request_buckets([1, 3]), poison=True))
    options = EngineOptions(max_batch_size=3, max_length=160, rounds_in_flight=ahead)
    made = build_engine(target, builder, attention=SdpaBackend(), runner=runner, options=options)
    found = run(made, [Request(case.prompt, 24 - 2 * place) for place, case in enumerate(cases)])
    assert texts(found) == [case.token_ids[: 24 - 2 * place] for place, case in enumerate(cases)]
    assert builder.calls["propose"] == builder.calls["extend"] == made.report.ran[Phase.TARGET_VERIFY, "phase"]
    assert made.report.refused[HOST] == builder.calls["propose"]
    made.close()
