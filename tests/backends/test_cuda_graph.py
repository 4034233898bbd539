"""Rounds replayed as CUDA graphs give what eager rounds give; what cannot be captured goes down the ladder, explained."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
import torch

from outrider import (
    AdaptiveChainBuilder,
    ChainBuilder,
    EngineOptions,
    NgramBuilder,
    RequestSettings,
    SpeculativeModel,
    StaticTreeBuilder,
    TreeBuilder,
    registry,
)
from outrider._torch import GraphPool
from outrider.checkpoint import Checkpoint
from outrider.errors import ClosedError
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets
from outrider.interfaces import BoundDraft, DrafterBuilder, GraphRunner, LoadOptions, Target
from outrider.loop.build import build_engine
from outrider.types import Phase, RefusalReason
from outrider.types.request import Request
from outrider_backends.breakable import breakable_runner
from outrider_backends.cuda_graph import CudaGraphMedium, cuda_graph_runner
from outrider_backends.sdpa import SdpaBackend
from tests.cases_data import greedy_cases
from tests.support.drafters import HostReaderBuilder
from tests.support.engines import drive
from tests.support.pair import trained_pair

CASES = greedy_cases()
PROMPTS = [case.prompt for case in CASES]
COUNT = 32
WANTED = [case.token_ids[:COUNT] for case in CASES]

BUILDERS: dict[str, Callable[[BoundDraft], DrafterBuilder | None]] = {
    "off": lambda _: None,
    "chain": lambda draft: ChainBuilder(draft, 5),
    "tree": lambda draft: TreeBuilder(draft, 4, 5, 15),
    "static tree": lambda draft: StaticTreeBuilder(draft, (0, 0, 1, 1, 2, 3)),
    "adaptive": lambda draft: AdaptiveChainBuilder(draft, 4),
    "ngram": lambda _: NgramBuilder(4),
}

STEPS = {
    "round": Steps(),
    "phase": Steps(rounds=False),
    "breakable": Steps(rounds=False, phases=False),
}


def small(step: str = "round", medium: CudaGraphMedium | None = None) -> LadderRunner:
    """Few buckets, so that a test captures little; padding is poisoned."""
    return cuda_graph_runner(GraphOptions(requests=request_buckets([1, 3, 8]), poison=True), STEPS[step], medium)


def model(target: Target, builder: DrafterBuilder | None, batch: int, runner: GraphRunner) -> SpeculativeModel:
    return SpeculativeModel(
        target,
        builder,
        attention=registry.attention("sdpa"),
        runner=lambda: runner,
        options=EngineOptions(max_batch_size=batch, max_length=160),
    )


def texts(made: SpeculativeModel, count: int = len(PROMPTS)) -> list[tuple[int, ...]]:
    completions = made.generate_batch(PROMPTS[:count], max_new_tokens=COUNT).completions
    return [each.token_ids for each in completions]


@contextmanager
def no_waiting() -> Generator[None]:
    """Whatever waits for the card raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def pair() -> tuple[Target, BoundDraft]:
    options = LoadOptions(torch.device("cuda", torch.cuda.current_device()), torch.float32)
    files = registry.pair("tiny")
    target = registry.load_target(Checkpoint(files.target), options)
    return target, registry.load_draft(Checkpoint(files.drafts[0]), options).bind(target)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", BUILDERS)
def test_replayed_rounds_give_the_text_of_eager_ones(pair: tuple[Target, BoundDraft], name: str, batch: int) -> None:
    target, draft = pair
    runner = small()
    made = model(target, BUILDERS[name](draft), batch, runner)
    count = 4 if batch == 1 else len(PROMPTS)
    for _ in range(2):
        assert texts(made, count) == WANTED[:count]
    ran = runner.report.ran
    assert ran[Phase.ROUND, "round"] > (0 if name == "adaptive" else ran[Phase.ROUND, "eager"])
    assert (Phase.TARGET_PREFILL, "eager") not in ran
    assert {reason for _, reason in runner.report.refused} == {RefusalReason.NOT_UNIFORM}
    records = runner.report.captured
    assert all(record.seconds > 0 for record in records)
    assert sum(record.nbytes for record in records) > 0
    made.close()


@pytest.mark.gpu
@pytest.mark.parametrize("step", ["phase", "breakable"])
@pytest.mark.parametrize("name", ["off", "chain", "tree", "static tree"])
def test_the_other_steps_give_the_same_text(pair: tuple[Target, BoundDraft], name: str, step: str) -> None:
    target, draft = pair
    runner = small(step)
    made = model(target, BUILDERS[name](draft), 3, runner)
    assert texts(made) == WANTED
    verified = Phase.TARGET_DECODE if name == "off" else Phase.TARGET_VERIFY
    assert runner.report.ran[verified, step] > 0
    assert {where for _, where in runner.report.ran} <= {step, "breakable"}
    made.close()


@pytest.mark.gpu
def test_the_runner_of_segments_finds_the_card(pair: tuple[Target, BoundDraft]) -> None:
    runner = breakable_runner()
    made = model(pair[0], ChainBuilder(pair[1], 3), 3, runner)
    assert texts(made, 4) == WANTED[:4]
    assert {where for _, where in runner.report.ran} == {"breakable"}
    made.close()


@pytest.mark.gpu
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_sampled_text_and_outputs_are_those_of_plain_eager_decoding(
    pair: tuple[Target, BoundDraft], name: str, step: str
) -> None:
    target, draft = pair
    made = model(target, BUILDERS[name](draft), 3, small(step))
    plain = model(target, None, 3, registry.runner("eager"))
    for seed in range(2):
        got, want = (
            each.generate_batch(
                PROMPTS[:4],
                max_new_tokens=24,
                temperature=0.9,
                top_p=0.9,
                repetition_penalty=1.1,
                seed=seed,
                logprobs=2,
                hidden_states="full",
                stop=["return"],
            )
            for each in (made, plain)
        )
        for one, other in zip(got.completions, want.completions, strict=True):
            assert one.token_ids == other.token_ids
            assert one.hidden_states is not None
            assert other.hidden_states is not None
            torch.testing.assert_close(one.hidden_states, other.hidden_states, atol=1e-3, rtol=1e-3)
            chosen = [[each.chosen for each in many] for many in (one.logprobs, other.logprobs)]
            assert chosen[0] == pytest.approx(chosen[1], abs=1e-3)
    made.close()


@pytest.mark.gpu
@pytest.mark.parametrize("step", STEPS)
def test_two_engines_on_one_medium_interleaved(pair: tuple[Target, BoundDraft], step: str) -> None:
    target, draft = pair
    medium = CudaGraphMedium()
    models = [model(target, ChainBuilder(draft, length), 2, small(step, medium)) for length in (2, 4)]
    streams = [made.stream_batch(PROMPTS[:5], settings=RequestSettings(max_new_tokens=COUNT)) for made in models]
    ids: list[dict[int, tuple[int, ...]]] = [{}, {}]
    open_streams = [0, 1]
    while open_streams:
        for number in list(open_streams):
            delta = next(streams[number], None)
            if delta is None:
                open_streams.remove(number)
            elif delta.completion is not None:
                ids[number][delta.index] = delta.completion.token_ids
    for found in ids:
        assert [found[index] for index in range(5)] == WANTED[:5]
    models[0].close()
    assert texts(models[1], 3) == WANTED[:3], "closing one leaves the other"
    models[1].close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["off", "chain", "tree"])
def test_a_replayed_round_waits_for_nothing(pair: tuple[Target, BoundDraft], name: str) -> None:
    target, draft = pair
    runner = small()
    options = EngineOptions(max_batch_size=3, max_length=160, rounds_in_flight=50)
    builder = BUILDERS[name](draft)
    engine = build_engine(target, builder, attention=SdpaBackend(), runner=runner, options=options)
    ids = [engine.submit(Request(prompt, 100)) for prompt in PROMPTS[:3]]
    engine.admit()
    engine.prefill()
    for _ in range(3):
        engine.run_round()
    before = runner.report.ran[Phase.ROUND, "round"]
    torch.cuda.synchronize()
    with no_waiting():
        for _ in range(4):
            engine.run_round()
    assert runner.report.ran[Phase.ROUND, "round"] == before + 4
    found = drive(engine)
    for request_id, case in zip(ids, CASES, strict=False):
        common = min(len(found[request_id].token_ids), len(case.token_ids))
        assert tuple(found[request_id].token_ids[:common]) == case.token_ids[:common]
    engine.close()


@pytest.mark.gpu
def test_a_round_that_reads_from_the_device_runs_by_phases_and_is_explained(pair: tuple[Target, BoundDraft]) -> None:
    medium = CudaGraphMedium()
    kept = model(pair[0], ChainBuilder(pair[1], 3), 2, small("round", medium))
    assert texts(kept, 3) == WANTED[:3]
    runner = small("round", medium)
    made = model(pair[0], HostReaderBuilder(), 2, runner)
    assert texts(made, 3) == WANTED[:3]
    assert runner.report.ran[Phase.ROUND, "round"] == 0
    assert runner.report.ran[Phase.TARGET_DECODE, "phase"] > 0
    assert runner.report.refused[Phase.ROUND, RefusalReason.BODY] > 0
    # The card is as usable as before: random numbers, memory that comes and goes, graphs from before and new ones.
    assert torch.rand(4, device="cuda").isfinite().all()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    block = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() > before
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
    assert texts(kept, 3) == WANTED[:3]
    after = model(pair[0], None, 2, small("round", medium))
    assert texts(after, 3) == WANTED[:3]
    for each in (kept, made, after):
        each.close()


@pytest.mark.gpu
@pytest.mark.parametrize("step", STEPS)
def test_closing_gives_the_memory_back(pair: tuple[Target, BoundDraft], step: str) -> None:
    medium = CudaGraphMedium()

    def reserved() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def one_life() -> None:
        made = model(pair[0], ChainBuilder(pair[1], 3), 8, small(step, medium))
        assert texts(made, 8) == WANTED[:8]
        made.close()
        with pytest.raises(ClosedError):
            made.generate("x")

    one_life()  # libraries keep workspaces from their first use on
    before = reserved()
    for _ in range(2):
        one_life()
        assert reserved() <= before


@pytest.mark.gpu
def test_out_of_memory_in_a_capture_leaves_text_and_card_as_they_are(
    pair: tuple[Target, BoundDraft], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third segment that is begun has no memory; whatever it belongs to is run another way."""
    begin, begun = GraphPool.begin, 0

    def third_fails(pool: GraphPool, graph: torch.cuda.CUDAGraph) -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            raise torch.OutOfMemoryError("no memory left on the card")
        begin(pool, graph)

    monkeypatch.setattr(GraphPool, "begin", third_fails)
    runner = small("breakable", CudaGraphMedium())
    made = model(pair[0], ChainBuilder(pair[1], 3), 3, runner)
    assert texts(made) == WANTED
    assert sum(count for (_, reason), count in runner.report.refused.items() if reason is RefusalReason.MEMORY) > 0
    assert any(where == "breakable" for _, where in runner.report.ran), "other sizes were captured"
    made.close()


def test_on_a_cpu_everything_runs_directly_with_the_reason_counted() -> None:
    runner = cuda_graph_runner()
    made = model(trained_pair().target, ChainBuilder(trained_pair().eagle3, 3), 2, runner)
    result = made.generate_batch(PROMPTS[:2], max_new_tokens=24)
    assert [each.token_ids for each in result.completions] == [wanted[:24] for wanted in WANTED[:2]]
    assert {where for _, where in runner.report.ran} == {"eager"}
    assert runner.report.refused[Phase.ROUND, RefusalReason.DEVICE] > 0
    assert "cpu" in runner.report.explained[Phase.ROUND, "round", RefusalReason.DEVICE].numbers
    assert runner.report.refused[Phase.TARGET_PREFILL, RefusalReason.DEVICE] > 0
    assert not runner.report.captured
