"""Which sizes are captured ahead, for which role and backend, and what is told of their cost."""

from __future__ import annotations

import pytest
from attrs import evolve

from outrider.graphs import GraphOptions
from outrider.loop.build import EngineOptions
from outrider.types import AttnCapabilities, CaptureRecord, CaptureSummary, Role, SamplingParams
from outrider.types.request import Request
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.loop.captures import BUILDERS, REQUESTS, STEPS, TOKENS, engine, outcome, requests, runner
from tests.support.media import AgainMedium


def test_sizes_are_clipped_to_what_the_engine_can_run_and_none_comes_twice() -> None:
    seen: list[tuple[int, int]] = []
    made = engine(runner(), None)
    summary = made.capture(lambda done, total, captured: seen.append((done, total)))
    # 4, 16 and 40 of 64 tokens; 3, 2 and 1 requests at two lengths and the whole context, greedy and sampled.
    assert summary.sizes == 3 + 3 * 3 * 2
    assert seen == [(done, summary.sizes) for done in range(1, summary.sizes + 1)]
    assert [each.size for each in summary.captured if each.by == "breakable"] == ["64 tokens", "16 tokens", "4 tokens"]
    rounds = [each.size for each in summary.captured if each.by == "round"]
    assert len(rounds) == 3 * 2 * 2
    assert [size.split(",")[0] for size in rounds[::4]] == ["3 requests", "2 requests", "1 request"]
    assert [size.rpartition(" to ")[2] for size in rounds[:4]] == ["150 positions"] * 2 + ["128 positions"] * 2


def test_the_smallest_engine() -> None:
    made = engine(runner(), None, options=EngineOptions(1, 1, max_length=2, max_prefill_tokens=1))
    summary = made.capture()
    assert (summary.unserved, summary.sizes) == ((), 1 + 2 * 2)
    assert [len(each) for each in outcome(made, [Request((3,), 5)])] == [1]


def test_progress_is_told_of_every_graph_with_its_cost() -> None:
    told: list[CaptureRecord] = []
    made = engine(runner())
    summary = made.capture(lambda done, total, captured: told.extend(captured))
    assert tuple(told) == summary.captured
    assert all(each.seconds > 0 and each.nbytes > 0 for each in told)
    assert summary.nbytes == sum(each.nbytes for each in told) == sum(kind.nbytes for kind in summary.by_kind.values())
    assert sum(kind.graphs for kind in summary.by_kind.values()) == len(told)
    assert summary.seconds >= sum(each.seconds for each in told)


class AnyLength(SdpaBackend):
    """Says that one plan is as good as another for short sequences."""

    @property
    def capabilities(self) -> AttnCapabilities:
        return evolve(super().capabilities, any_length=True)


@pytest.mark.parametrize("steps", STEPS)
def test_where_the_backend_serves_any_length_only_the_whole_context_is_captured(steps: str) -> None:
    made, every = engine(runner(STEPS[steps]), attention=AnyLength()), engine(runner(STEPS[steps]))
    summary = made.capture()
    assert summary.sizes == 3 + 3 * 2
    assert steps == "segments" or len(summary.captured) < len(every.capture().captured)
    plain = engine(EagerRunner())
    assert outcome(made, requests(SamplingParams())) == outcome(plain, requests(SamplingParams()))
    assert made.report.captured == list(summary.captured)


@pytest.mark.parametrize("builder", ["chain", "ngram"])
def test_roles_share_the_work(builder: str) -> None:
    both, prefill, decode = (
        engine(runner(role=role), BUILDERS[builder]).capture() for role in (Role.BOTH, Role.PREFILL, Role.DECODE)
    )
    assert (prefill.sizes, decode.sizes) == (decode.left_out, prefill.left_out)
    assert both.sizes == prefill.sizes + decode.sizes
    assert {each.by for each in prefill.captured} == {"breakable"}
    assert {each.by for each in decode.captured} == {"round"}
    assert min(prefill.nbytes, decode.nbytes) > 0
    assert max(prefill.nbytes, decode.nbytes) < both.nbytes
    assert [each.size for each in both.captured] == [each.size for each in (*prefill.captured, *decode.captured)]
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)


def test_a_runner_without_graphs_runs_nothing() -> None:
    summary = engine(EagerRunner()).capture()
    assert (summary.sizes, summary.captured, summary.unserved, summary.left_out) == (0, (), (), 0)


def test_a_breakable_runner_captures_prompts_and_phases_at_tokens_alone() -> None:
    made = engine(breakable_runner(GraphOptions(REQUESTS, TOKENS), (AgainMedium(),)))
    summary: CaptureSummary = made.capture()
    assert {each.by for each in summary.captured} == {"breakable"}
    assert {each.size for each in summary.captured} == {"64 tokens", "16 tokens", "4 tokens"}
