"""Capturing before the first request: complete, without a trace but its graphs, and told truly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, DrafterBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ClosedError, GraphError
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import AttnBackend, GraphRunner, KVMemory, Target, Work
from outrider.kv import PagedKVCache, PagedMemory, PagePool
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import (
    Acceptance,
    AttentionSpec,
    AttnCapabilities,
    CaptureRecord,
    CaptureSummary,
    DecodeState,
    HiddenTap,
    Phase,
    Proposal,
    RefusalReason,
    Role,
    SamplingParams,
)
from outrider.types.request import Request
from outrider.verification import ExactVerifier
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.support.engines import drive
from tests.support.misbehaving import RaisingStack, out_of_memory
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import CPU, ToySizes, ToyStack

SIZES = ToySizes(max_positions=150)
OPTIONS = EngineOptions(max_batch_size=3, page_size=4, max_prefill_tokens=40, max_length=150)
SMALL = EngineOptions(max_batch_size=2, page_size=4, max_prefill_tokens=40, max_length=150)
TOKENS, REQUESTS = token_buckets((4, 16, 64)), request_buckets((1, 2, 4))

STACK = ToyStack(SIZES)
TARGET = Target(STACK, STACK.weights)
DRAFT = ToyDraft(TARGET, taps=(HiddenTap.at(1), HiddenTap.final_norm()), recurrent=True, max_positions=150)
BUILDERS: Mapping[str, DrafterBuilder | None] = {
    "off": None,
    "chain": ChainBuilder(DRAFT, 3),
    "tree": TreeBuilder(DRAFT, 2, 2, 4),
    "static": StaticTreeBuilder(DRAFT, (0, 0, 1)),
    "ngram": NgramBuilder(3),
}
STEPS = {"rounds": Steps(), "phases": Steps(rounds=False), "segments": Steps(rounds=False, phases=False)}
PHASES = STEPS["phases"]
SAMPLED = SamplingParams(temperature=0.8, seed=5)


class Again:
    """A graph that does its work by doing it again, quick to make.

    Making it does the work, too, so whole rounds can only be captured while rows stand idle.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.outputs: Mapping[str, Tensor] = work(lambda eager: None)
        self.nbytes: int = 1000

    def replay(self) -> None:
        for name, tensor in self._work(lambda eager: eager()).items():
            self.outputs[name].copy_(tensor)

    def close(self) -> None: ...


class AgainMedium:
    """Makes them; fails where ``full`` says that memory does not suffice."""

    def __init__(self, full: str | None = None) -> None:
        self._full = full

    @property
    def name(self) -> str:
        return "again"

    def refuses(self, device: torch.device) -> str | None:
        return None

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Again:
        if self._full is not None and self._full in what:
            raise torch.OutOfMemoryError("no memory left on the device")
        return Again(work)


def runner(steps: Steps | None = None, role: Role = Role.BOTH, full: str | None = None) -> LadderRunner:
    return LadderRunner("again", (AgainMedium(full),), steps, GraphOptions(REQUESTS, TOKENS, role))


def tapes() -> LadderRunner:
    return tape_runner(GraphOptions(REQUESTS, TOKENS, poison=True), medium=TapeMedium(debug=True))


class KeptMemory(KVMemory):
    """Memory of an engine whose caches can be looked at."""

    def __init__(self, slack: int) -> None:
        pages_per_row = -(-(150 + slack) // 4)
        self.memory = PagedMemory(3, pages_per_row, 3 * pages_per_row + 2, 4, CPU)
        self.caches: list[tuple[int, PagedKVCache]] = []

    @property
    def pages(self) -> PagePool:
        return self.memory.pages

    def cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> PagedKVCache:
        made = self.memory.cache(layers, dtype)
        self.caches.append((len(layers), made))
        return made

    def owned(self) -> list[Tensor]:
        """All keys and values but those of the trash page."""
        slots = slice(2 * 4, None)
        return [
            part[slots].clone()
            for count, cache in self.caches
            for layer in range(count)
            for part in (cache.keys(layer), cache.values(layer))
        ]


def engine(
    runner: GraphRunner,
    builder: DrafterBuilder | None = BUILDERS["chain"],
    *,
    target: Target = TARGET,
    options: EngineOptions = OPTIONS,
    attention: AttnBackend | None = None,
    memory: KVMemory | None = None,
) -> Engine:
    backend = SdpaBackend() if attention is None else attention
    return build_engine(target, builder, attention=backend, runner=runner, options=options, memory=memory)


def requests(sampling: SamplingParams) -> list[Request]:
    """Prompts of every bucket, cut and not, whose sequences pass the first bucket of lengths."""
    prompts = [(5, 9, 2), tuple(range(1, 14)), tuple(range(1, 40)) * 3, (7,) * 25, (3, 1), (8,) * 50]
    counts = [6, 20, 33, 9, 14, 12]
    return [Request(prompt, count, sampling, eos_ids=()) for prompt, count in zip(prompts, counts, strict=True)]


def outcome(made: Engine, wanted: Sequence[Request]) -> list[tuple[int, ...]]:
    ids = [made.submit(request) for request in wanted]
    done = drive(made)
    return [tuple(done[request_id].token_ids) for request_id in ids]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", BUILDERS)
def test_no_request_captures_anything_afterwards_and_all_get_what_they_get_eagerly(name: str, steps: str) -> None:
    is_complete(engine(runner(STEPS[steps]), BUILDERS[name]), BUILDERS[name])


def test_the_same_of_tapes() -> None:
    is_complete(engine(tapes(), options=SMALL), BUILDERS["chain"])


def is_complete(made: Engine, builder: DrafterBuilder | None) -> None:
    summary = made.capture()
    assert (summary.unserved, summary.left_out) == ((), 0)
    plain = engine(EagerRunner(), builder)
    for sampling in (SamplingParams(), SAMPLED):
        assert outcome(made, requests(sampling)) == outcome(plain, requests(sampling))
    assert made.report.captured == list(summary.captured)
    assert not [what for what in made.report.ran if what[1] == "eager"]


def test_a_length_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(most: int) -> tuple[int, ...]:
        return (most,)

    monkeypatch.setattr("outrider.loop.capture.length_buckets", one)
    with pytest.raises(AssertionError):
        is_complete(engine(runner(PHASES)), BUILDERS["chain"])


@pytest.mark.parametrize("name", ["chain", "tree", "ngram"])
def test_the_engine_is_as_before(name: str) -> None:
    builder = BUILDERS[name]
    memory = KeptMemory(1 if builder is None else builder.slack)
    made = engine(runner(PHASES), builder, memory=memory)
    outcome(made, requests(SAMPLED)[:2])
    free, counted = memory.memory.pages.num_free_pages, (dict(made.report.ran), dict(made.report.refused))
    explained, table, owned = dict(made.report.explained), memory.pages.page_table.clone(), memory.owned()
    made.capture()
    assert (memory.memory.pages.num_free_pages, made.has_work) == (free, False)
    assert (dict(made.report.ran), dict(made.report.refused)) == counted
    assert made.report.explained == explained
    assert torch.equal(memory.pages.page_table, table)
    assert all(map(torch.equal, memory.owned(), owned))
    again = engine(EagerRunner(), builder)
    assert outcome(made, requests(SAMPLED)) == outcome(again, requests(SAMPLED))


def test_capturing_twice_captures_once() -> None:
    made = engine(runner())
    first, second = made.capture(), made.capture()
    assert first.captured
    assert not second.captured
    assert (first.sizes, second.sizes, second.nbytes) == (second.sizes, first.sizes, 0)


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


def test_requests_that_wait_or_run_are_not_pushed_aside() -> None:
    made = engine(runner(PHASES))
    made.submit(requests(SamplingParams())[0])
    with pytest.raises(GraphError, match=r"1 request waiting and 0 running.*before the first one is submitted"):
        made.capture()
    made.step()
    with pytest.raises(GraphError, match="0 requests waiting and 1 running"):
        made.capture()
    drive(made)
    assert made.capture().captured
    made.close()
    with pytest.raises(ClosedError):
        made.capture()


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
    assert "test_capture.py" in lost.refused.numbers
    assert {each.by for each in summary.captured} == {"breakable", "phase"}


def test_a_breakable_runner_captures_prompts_and_phases_at_tokens_alone() -> None:
    made = engine(breakable_runner(GraphOptions(REQUESTS, TOKENS), (AgainMedium(),)))
    summary: CaptureSummary = made.capture()
    assert {each.by for each in summary.captured} == {"breakable"}
    assert {each.size for each in summary.captured} == {"64 tokens", "16 tokens", "4 tokens"}
