"""Generation through the tape is token for token what it is directly, acceptance lengths included."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from attrs import evolve

from outrider.drafting.builders import ChainBuilder, DrafterBuilder, StaticTreeBuilder, TreeBuilder
from outrider.errors import ClosedError
from outrider.generation.completion import Completion
from outrider.generation.model import SpeculativeModel
from outrider.interfaces import GraphRunner
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import Phase, RefusalReason
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapePool, TapeRunner
from tests.cases_data import greedy_cases
from tests.support.engines import run
from tests.support.pair import trained_pair

CASES = greedy_cases()
COUNT = 24
BUILDERS: Mapping[str, Callable[[], DrafterBuilder | None]] = {
    "plain": lambda: None,
    "chain": lambda: ChainBuilder(trained_pair().eagle3, 4),
    "eagle 1": lambda: ChainBuilder(trained_pair().eagle1, 3),
    "tree": lambda: TreeBuilder(trained_pair().eagle3, 3, 3, 8),
    "static tree": lambda: StaticTreeBuilder(trained_pair().eagle3, (0, 0, 1, 1, 2)),
}


def spoiling() -> TapeRunner:
    return TapeRunner(pool=TapePool(debug=True))


def options(batch: int) -> EngineOptions:
    return EngineOptions(max_batch_size=batch, max_length=192, page_size=8)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", BUILDERS)
def test_greedy_tokens_and_acceptance_lengths(name: str, batch: int) -> None:
    """Requests of different lengths join and leave: five of them in a batch of three."""
    chosen = CASES[:2] if batch == 1 else CASES[:5]
    requests = [Request(case.prompt, COUNT - 5 * place) for place, case in enumerate(chosen)]
    found: list[list[tuple[list[int], list[int]]]] = []
    runners: tuple[GraphRunner, GraphRunner] = (spoiling(), EagerRunner())
    for runner in runners:
        target = trained_pair().target
        engine = build_engine(target, BUILDERS[name](), attention=SdpaBackend(), runner=runner, options=options(batch))
        found.append([(outcome.token_ids, outcome.accept_lengths) for outcome in run(engine, requests)])
    assert found[0] == found[1]
    for (token_ids, _), case, request in zip(found[0], chosen, requests, strict=True):
        assert tuple(token_ids) == case.token_ids[: request.max_new_tokens]
    report = runners[0].report
    directly = {phase for phase, where in report.ran if where == "eager"}
    assert directly <= {Phase.TARGET_PREFILL, Phase.DRAFT_EXTEND}, "prompts and nothing else"
    assert {reason for _, reason in report.refused} == {RefusalReason.NOT_UNIFORM}
    verified = Phase.TARGET_DECODE if name == "plain" else Phase.TARGET_VERIFY
    assert report.ran[verified, "tape"] == runners[1].report.ran[verified, "eager"]


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


@pytest.mark.parametrize("ahead", [0, 2])
def test_sampled_text_log_probabilities_and_hidden_states(ahead: int) -> None:
    """What a round hands out is kept while later rounds run: none of it may lie in a buffer that they write."""
    for one, two in zip(completions(spoiling, ahead), completions(EagerRunner, ahead), strict=True):
        assert one.token_ids == two.token_ids
        assert one.hidden_states is not None
        assert two.hidden_states is not None
        assert torch.allclose(one.hidden_states, two.hidden_states, rtol=1e-3, atol=1e-4)
