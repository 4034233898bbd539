"""Generation on every step of the ladder is token for token what it is directly, acceptance lengths included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
import torch
from attrs import evolve

from outrider.conformance import forbid_host_reads
from outrider.drafting.adaptive import AdaptiveChainBuilder
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ClosedError
from outrider.generation.completion import Completion
from outrider.generation.model import SpeculativeModel
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import BoundDraft, DrafterBuilder, GraphRunner, Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import OutputWants, Phase, RefusalReason, RequestId, SamplingParams
from outrider.types.outputs import CaptureHiddenMode
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.backends.odd_stacks import AxesStack, LengthsStack, OutsideStack, featured, standalone
from tests.cases_data import greedy_cases
from tests.support.engines import Outcome, drive, outcomes, run
from tests.support.pair import trained_pair
from tests.support.toy_target import ToyStack

CASES = greedy_cases()
COUNT = 14

STEPS = {
    "round": Steps(),
    "round alone": Steps(phases=False, breakable=False),
    "phase": Steps(rounds=False),
    "breakable": Steps(rounds=False, phases=False),
}


def drafters(draft: BoundDraft) -> Mapping[str, DrafterBuilder | None]:
    return {
        "plain": None,
        "chain": ChainBuilder(draft, 4),
        "tree": TreeBuilder(draft, 3, 3, 8),
        "static tree": StaticTreeBuilder(draft, (0, 0, 1, 1, 2)),
        "ngram": NgramBuilder(3),
        "adaptive": AdaptiveChainBuilder(draft, 3, costs=(1.0, 1.4, 1.7, 1.9)),
    }


NAMES = ("plain", "chain", "tree", "static tree", "ngram", "adaptive")


def spoiling(step: str = "round", medium: TapeMedium | None = None) -> LadderRunner:
    """Everything poisoned that a graph must not read; buckets that most calls do not fill."""
    options = GraphOptions(requests=request_buckets([1, 3, 8]), tokens=token_buckets([10, 30, 90]), poison=True)
    return tape_runner(options, STEPS[step], TapeMedium(debug=True) if medium is None else medium)


def options(batch: int, ahead: int = 0) -> EngineOptions:
    return EngineOptions(max_batch_size=batch, max_length=90, page_size=8, rounds_in_flight=ahead)


def engine(target: Target, builder: DrafterBuilder | None, runner: GraphRunner, batch: int, ahead: int = 0) -> Engine:
    return build_engine(target, builder, attention=SdpaBackend(), runner=runner, options=options(batch, ahead))


def of_pair(name: str, runner: GraphRunner, batch: int, ahead: int = 0) -> Engine:
    return engine(trained_pair().target, drafters(trained_pair().eagle3)[name], runner, batch, ahead)


def requests(count: int) -> list[Request]:
    """Each ends earlier than the one before: a batch shrinks, and grows again while others wait."""
    return [Request(case.prompt, COUNT - 2 * (place % 6)) for place, case in enumerate(CASES[:count])]


def lengths(found: Sequence[Outcome]) -> list[tuple[list[int], list[int]]]:
    return [(outcome.token_ids, outcome.accept_lengths) for outcome in found]


@cache
def directly(name: str, batch: int, count: int) -> list[tuple[list[int], list[int]]]:
    return lengths(run(of_pair(name, EagerRunner(), batch), requests(count)))


def check(name: str, step: str, batch: int, count: int, ahead: int = 0) -> LadderRunner:
    runner = spoiling(step)
    found = lengths(run(of_pair(name, runner, batch, ahead), requests(count)))
    assert found == directly(name, batch, count)
    for (token_ids, _), case, request in zip(found, CASES, requests(count), strict=False):
        assert tuple(token_ids) == case.token_ids[: request.max_new_tokens]
    return runner


@pytest.mark.parametrize("step", ["round", "phase", "breakable"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_and_acceptance_lengths(name: str, step: str) -> None:
    """Requests of different lengths join and leave: five of them in a batch of three."""
    report = check(name, step, batch=3, count=5).report
    where = {kind for _, kind in report.ran}
    phases = {phase for phase, kind in report.ran if kind == "eager"}
    match step:
        case "round":
            assert where == {"round", "breakable", "eager"}
            assert Phase.TARGET_PREFILL not in phases, "prompts are captured, and only first rounds run directly"
        case "phase":
            assert where == {"phase", "breakable"}, "prompts are the only ones in segments"
            assert {phase for phase, kind in report.ran if kind == "breakable"} <= {
                Phase.TARGET_PREFILL,
                Phase.DRAFT_EXTEND,
            }
        case _:
            assert where == {"breakable"}
    if step in ("round", "phase"):
        assert {reason for _, reason in report.refused} == {RefusalReason.NOT_UNIFORM}
    if step == "breakable":
        assert not report.refused


@pytest.mark.parametrize(
    ("name", "step", "batch", "count"),
    [
        ("chain", "round", 1, 2),
        ("tree", "round", 8, 10),
        ("tree", "phase", 8, 10),
        ("chain", "breakable", 8, 10),
    ],
)
def test_batches_of_one_and_of_eight(name: str, step: str, batch: int, count: int) -> None:
    check(name, step, batch, count)


def test_rounds_alone() -> None:
    report = check("chain", "round alone", batch=3, count=4).report
    assert {kind for _, kind in report.ran} == {"round", "eager"}
    assert not report.refused


@pytest.mark.parametrize(("name", "step"), [("chain", "round"), ("tree", "round"), ("chain", "phase")])
def test_the_host_may_be_a_round_behind(name: str, step: str) -> None:
    check(name, step, batch=3, count=4, ahead=1)


def test_the_other_kind_of_draft() -> None:
    found = [
        lengths(run(engine(trained_pair().target, ChainBuilder(trained_pair().eagle1, 3), runner, 3), requests(4)))
        for runner in (EagerRunner(), spoiling("round"), spoiling("phase"), spoiling("breakable"))
    ]
    assert all(other == found[0] for other in found)


MIXED = [
    Request((3, 1, 4), 12),
    Request((1,), 12, SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=3)),
    Request((2, 7, 1, 8, 2, 8), 1),
    Request((5, 5), 9, SamplingParams(temperature=1.0, seed=9, logit_bias={4: 2.0}), draft_cap=1),
    Request((5, 5, 6), 9, wants=OutputWants(logprobs=2, hidden=CaptureHiddenMode.FULL)),
]
ODD: Mapping[str, Callable[[], tuple[Target, BoundDraft]]] = {
    "lengths": lambda: standalone(LengthsStack()),
    "standalone": lambda: standalone(ToyStack()),
    "taps": lambda: featured(ToyStack()),
    "three axes": lambda: featured(AxesStack()),
    "pieces outside": lambda: standalone(OutsideStack()),
    "pieces outside and taps": lambda: featured(OutsideStack()),
}


ON = ("round", "phase", "breakable")
EVERY_PAIR = [
    (name, step, ("chain", "tree")[(row + column) % 2])
    for row, name in enumerate(ODD)
    for column, step in enumerate(ON)
]
"""Every model on every step; chain and tree by turns, so that each meets every model and every step."""


@pytest.mark.parametrize(("name", "step", "which"), EVERY_PAIR)
def test_models_that_ask_more_of_a_runner(name: str, step: str, which: str) -> None:
    """Greedy and sampled, capped and not, in one batch."""
    target, draft = ODD[name]()
    runner = spoiling(step)
    found, expected = (
        run(engine(target, drafters(draft)[which], chosen, 3), MIXED) for chosen in (runner, EagerRunner())
    )
    assert lengths(found) == lengths(expected)
    assert [outcome.reason for outcome in found] == [outcome.reason for outcome in expected]
    assert runner.report.ran[Phase.ROUND if step == "round" else Phase.TARGET_VERIFY, step] > 0
    assert {reason for _, reason in runner.report.refused} <= {RefusalReason.NOT_UNIFORM}


def test_pieces_outside_see_only_real_rows_where_batches_are_ragged() -> None:
    stack = OutsideStack()
    target, draft = standalone(stack)
    run(engine(target, ChainBuilder(draft, 4), EagerRunner(), 3), MIXED)
    expected = list(stack.rows)
    stack.rows.clear()
    run(engine(target, ChainBuilder(draft, 4), spoiling("breakable"), 3), MIXED)
    assert stack.rows == expected, "in captures it is not run, and afterwards just as often and with as many rows"


def completions(runner: Callable[[], GraphRunner], ahead: int) -> tuple[Completion, ...]:
    builder = TreeBuilder(trained_pair().eagle3, 3, 3, 8)
    several = evolve(options(2), rounds_in_flight=ahead)
    model = SpeculativeModel(trained_pair().target, builder, attention=SdpaBackend(), runner=runner, options=several)
    prompts = [case.prompt for case in CASES[:3]]
    found = model.generate_batch(
        prompts, max_new_tokens=12, temperature=0.9, top_p=0.9, seed=5, logprobs=2, hidden_states="full"
    ).completions
    model.close()
    with pytest.raises(ClosedError):
        model.generate(prompts[0])
    return found


@cache
def completions_directly() -> tuple[Completion, ...]:
    return completions(EagerRunner, 0)


@pytest.mark.parametrize(("step", "ahead"), [("round", 0), ("round", 2), ("phase", 2), ("breakable", 0)])
def test_sampled_text_log_probabilities_and_hidden_states(step: str, ahead: int) -> None:
    """What a round hands out is kept while later rounds run: none of it may lie in a buffer that they write."""
    for one, two in zip(completions(lambda: spoiling(step), ahead), completions_directly(), strict=True):
        assert one.token_ids == two.token_ids
        assert one.hidden_states is not None
        assert two.hidden_states is not None
        assert torch.allclose(one.hidden_states, two.hidden_states, rtol=1e-3, atol=1e-4)
        for mine, direct in zip(one.logprobs, two.logprobs, strict=True):
            assert mine.chosen == pytest.approx(direct.chosen, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in direct.top]


@pytest.mark.parametrize("step", ["round", "phase", "breakable"])
def test_two_engines_on_one_medium_interleaved(step: str) -> None:
    """Other draft lengths, other batches, text after text of other lengths, a step of each in turn."""
    medium = TapeMedium(debug=True)
    engines = [of_pair("chain", spoiling(step, medium), 2), of_pair("tree", spoiling(step, medium), 3)]
    batches = requests(4), requests(5)[::-1]
    found: list[dict[RequestId, Outcome]] = [{}, {}]
    for _ in range(2):
        ids = [[one.submit(request) for request in batch] for one, batch in zip(engines, batches, strict=True)]
        while any(one.has_work for one in engines):
            for one, into in zip(engines, found, strict=True):
                if one.has_work:
                    outcomes(one.step(), into)
        for into, chosen, batch in zip(found, ids, batches, strict=True):
            for request_id, request in zip(chosen, batch, strict=True):
                case = next(case for case in CASES if case.prompt == request.prompt)
                assert tuple(into[request_id].token_ids) == case.token_ids[: request.max_new_tokens]
    engines[0].close()
    request_id = engines[1].submit(requests(1)[0])
    assert tuple(drive(engines[1])[request_id].token_ids) == CASES[0].token_ids[:COUNT], "closing one leaves the other"


def test_prompts_in_chunks() -> None:
    """A prompt that is cut, beside the ends of others: each chunk is a ragged batch of its own."""
    prompts = [case.prompt * 3 for case in CASES[:4]]
    found: list[list[tuple[list[int], list[int]]]] = []
    runner = spoiling("round")
    for chosen, chunk in ((EagerRunner(), 8192), (EagerRunner(), 7), (runner, 7)):
        small = evolve(options(4), max_prefill_tokens=chunk)
        builder = ChainBuilder(trained_pair().eagle3, 3)
        one = build_engine(trained_pair().target, builder, attention=SdpaBackend(), runner=chosen, options=small)
        found.append(lengths(run(one, [Request(prompt, 6) for prompt in prompts])))
    assert found[0] == found[1] == found[2]
    assert runner.report.ran[Phase.TARGET_PREFILL, "breakable"] == -(-sum(map(len, prompts)) // 7)
    assert runner.report.ran[Phase.DRAFT_EXTEND, "breakable"] == runner.report.ran[Phase.TARGET_PREFILL, "breakable"]


@pytest.mark.parametrize("name", ["plain", "chain", "tree"])
def test_a_replayed_round_asks_the_host_for_nothing(name: str) -> None:
    runner = spoiling("round")
    one = of_pair(name, runner, 4, ahead=50)
    for request in requests(3):
        one.submit(request)
    one.admit()
    one.prefill()
    for _ in range(2):
        one.run_round()
    assert runner.report.ran[Phase.ROUND, "round"] == 1, "the first is the warm-up of the second"
    with forbid_host_reads():
        for _ in range(3):
            one.run_round()
    assert runner.report.ran[Phase.ROUND, "round"] == 4
    assert drive(one)
