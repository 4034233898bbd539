"""Rounds replayed as CUDA graphs give what eager rounds give; what cannot be captured is run directly and explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outrider import (
    AdaptiveChainBuilder,
    ChainBuilder,
    EngineOptions,
    NgramBuilder,
    SpeculativeModel,
    StaticTreeBuilder,
    TreeBuilder,
    registry,
)
from outrider.checkpoint import Checkpoint
from outrider.drafting.builders import DrafterBuilder, DrafterParts, NoDraftBuilder
from outrider.errors import ClosedError
from outrider.interfaces import BoundDraft, Drafter, LoadOptions, Target
from outrider.types import (
    HiddenTap,
    OutputWants,
    Phase,
    Proposal,
    RefusalReason,
    RequestCount,
    RoundShape,
    SamplingFeatures,
    StepResult,
    TreeShape,
)
from outrider.types.state import DecodeState, VerifiedRows
from outrider_backends.cuda_graph import CudaGraphRunner
from tests.cases_data import greedy_cases
from tests.support.pair import trained_pair

CASES = greedy_cases()
PROMPTS = [case.prompt for case in CASES]
WANTED = [case.token_ids for case in CASES]

BUILDERS: dict[str, Callable[[BoundDraft], DrafterBuilder | None]] = {
    "off": lambda _: None,
    "chain": lambda draft: ChainBuilder(draft, 5),
    "tree": lambda draft: TreeBuilder(draft, 4, 5, 15),
    "static tree": lambda draft: StaticTreeBuilder(draft, (0, 0, 1, 1, 2, 3)),
    "adaptive": lambda draft: AdaptiveChainBuilder(draft, 4),
    "ngram": lambda _: NgramBuilder(4),
}


class HostReader:
    """A drafter that reads from the device in the middle of a round."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    @property
    def shape(self) -> TreeShape:
        return self._inner.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return self._inner.taps

    def extend(self, rows: VerifiedRows) -> None:
        self._inner.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        assert int(state.lengths.sum().item()) >= 0
        return self._inner.propose(state)

    def move_row(self, source: int, destination: int) -> None:
        self._inner.move_row(source, destination)


class HostReaderBuilder(NoDraftBuilder):
    """Plain decoding with a host read in every round."""

    def build(self, parts: DrafterParts) -> Drafter:
        return HostReader(super().build(parts))


def model(target: Target, builder: DrafterBuilder | None, batch: int, runner: CudaGraphRunner) -> SpeculativeModel:
    return SpeculativeModel(
        target,
        builder,
        attention=registry.attention("sdpa"),
        runner=lambda: runner,
        options=EngineOptions(max_batch_size=batch),
    )


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
    runner = CudaGraphRunner()
    made = model(target, BUILDERS[name](draft), batch, runner)
    for _ in range(2):
        result = made.generate_batch(PROMPTS, max_new_tokens=64)
        assert [each.token_ids for each in result.completions] == WANTED
    ran = runner.report.ran
    assert ran[Phase.ROUND, "cuda graph"] > ran[Phase.ROUND, "eager"]
    assert not runner.report.refused


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_sampled_text_and_outputs_are_those_of_plain_eager_decoding(pair: tuple[Target, BoundDraft], name: str) -> None:
    target, draft = pair
    made = model(target, BUILDERS[name](draft), 3, CudaGraphRunner())
    plain = SpeculativeModel(target, attention=registry.attention("sdpa"), runner=lambda: registry.runner("eager"))
    for seed in range(3):
        got, want = (
            each.generate_batch(
                PROMPTS[:4],
                max_new_tokens=40,
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


@pytest.mark.gpu
def test_two_engines_on_graphs_of_their_own_may_be_interleaved(pair: tuple[Target, BoundDraft]) -> None:
    target, draft = pair
    streams = [
        model(target, ChainBuilder(draft, length), 2, CudaGraphRunner()).stream_batch(PROMPTS) for length in (2, 4)
    ]
    ids: list[dict[int, tuple[int, ...]]] = [{}, {}]
    open_streams = [0, 1]
    while open_streams:
        for number in list(open_streams):
            delta = next(streams[number], None)
            if delta is None:
                open_streams.remove(number)
            elif delta.completion is not None:
                ids[number][delta.index] = delta.completion.token_ids[:64]
    for found in ids:
        assert [found[index] for index in range(len(PROMPTS))] == WANTED


@pytest.mark.gpu
def test_a_round_that_reads_from_the_device_is_run_directly_and_explained(pair: tuple[Target, BoundDraft]) -> None:
    runner = CudaGraphRunner()
    made = model(pair[0], HostReaderBuilder(), 2, runner)
    result = made.generate_batch(PROMPTS, max_new_tokens=64)
    assert [each.token_ids for each in result.completions] == WANTED
    assert runner.report.ran[Phase.ROUND, "cuda graph"] == 0
    assert runner.report.refused[Phase.ROUND, RefusalReason.BODY] > 0
    # The card is as usable as before.
    after = model(pair[0], None, 2, CudaGraphRunner()).generate_batch(PROMPTS, max_new_tokens=64)
    assert [each.token_ids for each in after.completions] == WANTED


@pytest.mark.gpu
def test_closing_frees_the_graphs(pair: tuple[Target, BoundDraft]) -> None:
    made = model(pair[0], ChainBuilder(pair[1], 3), 8, CudaGraphRunner())
    made.generate_batch(PROMPTS, max_new_tokens=64)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made.close()
    assert torch.cuda.memory_allocated() <= before
    with pytest.raises(ClosedError):
        made.generate("x")


def test_on_a_cpu_rounds_run_directly_with_the_reason_counted() -> None:
    runner = CudaGraphRunner()
    made = model(trained_pair().target, ChainBuilder(trained_pair().eagle3, 3), 2, runner)
    result = made.generate_batch(PROMPTS[:2], max_new_tokens=24)
    assert [each.token_ids for each in result.completions] == [wanted[:24] for wanted in WANTED[:2]]
    assert runner.report.refused[Phase.ROUND, RefusalReason.DEVICE] > 0
    assert "cpu" in runner.report.explained[Phase.ROUND, RefusalReason.DEVICE].numbers


def test_phases_are_never_captured_alone_and_a_closed_runner_says_so() -> None:
    runner = CudaGraphRunner()
    runner.close()
    runner.close()
    with pytest.raises(ClosedError, match="closed"):
        runner.run_round(_shape(), _must_not_run)


def _shape() -> RoundShape:
    return RoundShape(RequestCount(1), 10, TreeShape.chain(2), SamplingFeatures(), OutputWants())


def _must_not_run(max_length: int) -> StepResult:
    raise AssertionError(f"a closed runner ran a round of {max_length}")
