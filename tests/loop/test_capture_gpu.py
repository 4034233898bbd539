"""Capturing ahead on a card: complete, equal to running directly, and of the size that the summary says."""

from __future__ import annotations

from functools import partial

import pytest
from attrs import evolve

from outrider import CaptureSummary, EngineOptions, Prompt, RequestSettings, SpeculativeModel, load, registry
from outrider.graphs import GraphOptions, request_buckets, token_buckets
from outrider.types import Phase, Role
from outrider_backends.cuda_graph import CudaGraphMedium, cuda_graph_runner
from tests.cases_data import greedy_cases

pytestmark = pytest.mark.gpu

OPTIONS = EngineOptions(max_batch_size=2, max_length=256)
TOKENS, REQUESTS = (8, 32, 128), (1, 2)
CASES = greedy_cases()[:6]


def captured(role: Role = Role.BOTH, attention: str = "sdpa") -> tuple[SpeculativeModel, CaptureSummary]:
    model = load(
        device="cuda",
        dtype="float32",
        attention=attention,
        runner="cuda-graph",
        role=role,
        capture=True,
        capture_tokens=TOKENS,
        capture_requests=REQUESTS,
        options=OPTIONS,
    )
    assert model.captured is not None
    return model, model.captured


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_request_captures_anything_afterwards_and_all_get_what_they_get_eagerly(temperature: float) -> None:
    model, summary = captured()
    assert (summary.unserved, summary.left_out) == ((), 0)
    plain = load(device="cuda", dtype="float32", attention="sdpa", runner="eager", options=OPTIONS)
    prompts = [case.prompt for case in greedy_cases()[:4]]
    ours, theirs = (
        each.generate_batch(prompts, max_new_tokens=24, temperature=temperature, seed=7).completions
        for each in (model, plain)
    )
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    assert model.engine.report.captured == list(summary.captured)
    assert not [where for _, where in model.engine.report.ran if where == "eager"]
    model.close()
    plain.close()


@pytest.mark.parametrize("attention", ["sdpa", "triton"])
def test_rounds_of_all_rows_run_half_run_prompts_along_and_change_nothing(attention: str) -> None:
    """Prompts come in parts of eight tokens, and every round is the graph of four requests."""
    parts = evolve(OPTIONS, max_batch_size=4, max_prefill_tokens=8)
    captures = partial(load, device="cuda", dtype="float32", attention=attention, options=parts)
    model = captures(runner="cuda-graph", capture=True, capture_tokens=(8,), capture_requests=(4,))
    plain = captures(runner="eager")
    prompts = [Prompt(case.prompt * 3, RequestSettings(max_new_tokens=8 + 5 * n)) for n, case in enumerate(CASES)]
    before = len(model.engine.report.captured)
    ours, theirs = (each.generate_batch(prompts).completions for each in (model, plain))
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    assert [one.accept_lengths for one in ours] == [one.accept_lengths for one in theirs]
    assert len(model.engine.report.captured) == before
    assert model.engine.report.ran[Phase.ROUND, "round"] > 20
    model.close()
    plain.close()


def apart(role: Role) -> tuple[SpeculativeModel, CaptureSummary]:
    """As `captured`, with a pool of its own, in which no slack is left of what was captured before."""
    pair = load(device="cuda", dtype="float32", attention="sdpa", runner="eager", options=OPTIONS)
    options = GraphOptions(request_buckets(REQUESTS), token_buckets(TOKENS), role)
    model = SpeculativeModel(
        pair.target,
        pair.drafter,
        attention=registry.attention("sdpa"),
        runner=partial(cuda_graph_runner, options, medium=CudaGraphMedium()),
        options=OPTIONS,
    )
    pair.close()
    return model, model.capture()


def test_a_role_spares_the_memory_of_the_other_half() -> None:
    found: dict[Role, CaptureSummary] = {}
    for role in Role:
        model, found[role] = apart(role)
        model.close()
    both, prefill, decode = found[Role.BOTH], found[Role.PREFILL], found[Role.DECODE]
    assert set(prefill.by_kind) == {"breakable"}
    assert set(decode.by_kind) == {"round"}
    assert len(both.captured) == len(prefill.captured) + len(decode.captured)
    assert (prefill.left_out, decode.left_out) == (decode.sizes, prefill.sizes)
    assert min(prefill.nbytes, decode.nbytes) > 0
    assert both.nbytes > 0
