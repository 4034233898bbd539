"""The pair with images on a card: through every kind of graph what the CPU says, which is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch

from examples.digits.questions import SEE
from outrider.generation.model import Prompt
from outrider.graphs import GraphOptions, Steps, request_buckets, token_buckets
from outrider.interfaces import GraphRunner
from outrider.types import Phase, Role
from outrider_backends.breakable import breakable_runner
from outrider_backends.cuda_graph import cuda_graph_runner
from outrider_backends.eager import EagerRunner
from tests.multimodal.pair import (
    BOTH,
    IMAGES,
    MIXED,
    SUM,
    SeeingPair,
    about,
    load_seeing_pair,
    model_of,
    plain_texts,
    right_answer,
    texts_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("attention", ["sdpa", "triton"])]

PHASE = Phase.MEDIA_ENCODE

RUNNERS: Mapping[str, Callable[[], GraphRunner]] = {
    "eager": EagerRunner,
    "rounds": cuda_graph_runner,
    "phases": lambda: cuda_graph_runner(steps=Steps(rounds=False)),
    "breakable": breakable_runner,
}
STEPS = {"eager": "eager", "rounds": "round", "phases": "phase", "breakable": "breakable"}


@pytest.fixture(scope="module")
def pair() -> SeeingPair:
    return load_seeing_pair(torch.device("cuda", torch.cuda.current_device()))


WAYS = [*((runner, "chain") for runner in RUNNERS), ("eager", "off"), ("rounds", "off"), ("rounds", "tree")]


@pytest.mark.parametrize(("runner", "draft"), WAYS)
def test_eight_requests_half_with_images(pair: SeeingPair, draft: str, runner: str, attention: str) -> None:
    model = model_of(pair, draft, RUNNERS[runner], attention=attention, batch=5)
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))
    assert texts_of(model, MIXED[::-1]) == plain_texts(tuple(MIXED))[::-1]
    assert {by for (_, by), times in model.engine.report.ran.items() if times} >= {STEPS[runner]}
    model.close()


@pytest.mark.parametrize("runner", RUNNERS)
def test_another_image_is_another_answer_and_text_sees_none(pair: SeeingPair, runner: str, attention: str) -> None:
    model = model_of(pair, "chain", RUNNERS[runner], attention=attention)
    text = Prompt("<|begin|>USER: What do you see?\nASSISTANT:\n")
    for row in IMAGES:
        assert model.generate(about(row)).text == right_answer(SEE, row)
        assert model.generate(about(row, asking=SUM.wordings[0])).text == right_answer(SUM, row)
        assert model.generate(text).text == right_answer(SEE)
    for rows in (("05", "118"), ("118", "05")):
        assert model.generate(about(*rows, asking=BOTH.wordings[0])).text == right_answer(BOTH, *rows)
    model.close()


@pytest.mark.parametrize("runner", ["rounds", "breakable"])
def test_prompts_cut_in_the_middle_of_an_image(pair: SeeingPair, runner: str, attention: str) -> None:
    model = model_of(pair, "chain", RUNNERS[runner], attention=attention, batch=3, budget=40)
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))
    model.close()


@pytest.mark.parametrize("runner", ["rounds", "breakable"])
def test_images_go_through_graphs_of_the_tower(pair: SeeingPair, runner: str, attention: str) -> None:
    """As the tower gives directly, whatever the number of images; prompts that wait stay apart."""
    model = model_of(pair, "chain", RUNNERS[runner], attention=attention, batch=2)
    media, pictures = pair.target.media, [path.read_bytes() for path in IMAGES.values()]
    assert media is not None
    for count in range(1, 10):
        directly, captured, again = (
            media.prepare("<image>" * count, pictures[:count], runner=each)
            for each in (None, model.engine.runner, model.engine.runner)
        )
        media.prepare("<image>" * count, pictures[-count:], runner=model.engine.runner)
        assert torch.equal(captured.embeds, again.embeds)
        assert float((captured.embeds - directly.embeds).abs().max()) <= 1e-3 * float(directly.embeds.abs().max())
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))
    report = model.engine.report
    assert [each.size for each in report.captured if each.phase is PHASE] == ["1 item", "2 items", "4 items", "8 items"]
    assert report.ran[PHASE, "media"] > 0
    assert report.ran[PHASE, "eager"] == 0
    model.close()


@pytest.mark.parametrize("role", list(Role))
def test_towers_are_captured_ahead(pair: SeeingPair, role: Role, attention: str) -> None:
    options = GraphOptions(request_buckets((1, 2)), token_buckets((128, 512)), role)
    model = model_of(pair, "off", partial(cuda_graph_runner, options), attention=attention, batch=2, budget=512)
    summary = model.capture()
    assert not [each for each in summary.unserved if each.phase is PHASE]
    ahead = [each.size for each in summary.captured if each.phase is PHASE]
    assert ahead == ([] if role is Role.DECODE else ["8 items", "4 items", "2 items", "1 item"])
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))
    report = model.engine.report
    assert [each.size for each in report.captured if each.phase is PHASE] == ahead
    assert report.ran[PHASE, "eager" if role is Role.DECODE else "media"] > 0
    model.close()


@pytest.mark.parametrize("draft", ["chain", "tree"])
def test_seeded_sampling_is_that_of_plain_decoding(pair: SeeingPair, draft: str, attention: str) -> None:
    plain = model_of(pair, "off", attention=attention)
    drafted = model_of(pair, draft, cuda_graph_runner, attention=attention)
    wanted, found = (
        model.generate_batch(MIXED, temperature=2.5, top_k=20, seed=1, max_new_tokens=24).completions
        for model in (plain, drafted)
    )
    assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
    plain.close()
    drafted.close()
