"""Capturing ahead on a card: complete, equal to running directly, and of the size that the summary says."""

from __future__ import annotations

import pytest

from outrider import CaptureSummary, EngineOptions, SpeculativeModel, load
from outrider.types import Role
from tests.cases_data import greedy_cases

pytestmark = pytest.mark.gpu

OPTIONS = EngineOptions(max_batch_size=2, max_length=256)
TOKENS, REQUESTS = (8, 32, 128), (1, 2)


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


def test_a_role_spares_the_memory_of_the_other_half() -> None:
    found: dict[Role, CaptureSummary] = {}
    for role in Role:
        model, found[role] = captured(role)
        model.close()
    both, prefill, decode = found[Role.BOTH], found[Role.PREFILL], found[Role.DECODE]
    assert set(prefill.by_kind) == {"breakable"}
    assert set(decode.by_kind) == {"round"}
    assert len(both.captured) == len(prefill.captured) + len(decode.captured)
    assert (prefill.left_out, decode.left_out) == (decode.sizes, prefill.sizes)
    assert both.nbytes > 0
