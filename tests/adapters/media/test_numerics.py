"""Both adapters against transformers: what the decoder is fed, its logits, and greedy texts through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.drafting.ngram import NgramBuilder
from outrider.interfaces import DrafterBuilder, PreparedPrompt, Target
from outrider.loop.build import EngineOptions
from outrider.types import StackInputs
from outrider.types.request import Request
from tests.adapters.llama.reference import ReferenceAttend
from tests.adapters.media.models import HubModel, llava, load, media_of, prompt, qwen, words
from tests.adapters.media.pictures import png
from tests.support.engines import drive, engine_of

NEW_TOKENS = 12


@frozen(eq=False)
class Pair:
    """A transformers model and what we made of its checkpoint."""

    hub: HubModel
    target: Target


@frozen
class Case:
    """A prompt with one placeholder for each image."""

    token_ids: list[int]
    media: list[bytes]


@pytest.fixture(scope="module", params=["llava", "qwen2_5_vl"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    hub = llava() if request.param == "llava" else qwen()
    return Pair(hub, load(hub.save(tmp_path_factory.mktemp("model"))))


def cases(hub: HubModel) -> dict[str, Case]:
    return {
        "no image": Case(words(9, 1), []),
        "one image": Case(prompt(hub, words(4, 2), None, words(3, 3)), [png(120, 90, 1)]),
        "image first and last": Case(prompt(hub, None, words(2, 4), None), [png(60, 150, 2), png(84, 84, 3)]),
        "three images": Case(
            prompt(hub, words(1, 5), None, words(3, 6), None, None, words(2, 7)),
            [png(200, 30, 4), png(42, 42, 5), png(90, 160, 6)],
        ),
        "the same image twice": Case(prompt(hub, None, words(1, 8), None, words(1, 9)), [png(70, 70, 7)] * 2),
        "extreme sizes": Case(prompt(hub, words(2, 10), None, None), [png(1, 1, 8), png(1000, 6, 9)]),
    }


NAMES = ["no image", "one image", "image first and last", "three images", "the same image twice", "extreme sizes"]


def prepared(pair: Pair, case: Case) -> PreparedPrompt:
    return media_of(pair.target).prepare(case.token_ids, case.media)


def continued(
    target: Target,
    prompts: Sequence[PreparedPrompt],
    drafter: DrafterBuilder | None = None,
    max_prefill_tokens: int = 8192,
    max_batch_size: int = 8,
) -> list[list[int]]:
    """Greedy continuations of all prompts, submitted at once."""
    options = EngineOptions(
        max_batch_size=max_batch_size, page_size=4, max_prefill_tokens=max_prefill_tokens, max_length=200
    )
    engine = engine_of(target, drafter, options)
    ids = [engine.submit(Request(one.token_ids, max_new_tokens=NEW_TOKENS, eos_ids=()), one) for one in prompts]
    done = drive(engine)
    return [done[one].token_ids for one in ids]


@pytest.mark.parametrize("name", NAMES)
def test_the_decoder_is_fed_what_transformers_feeds_it(pair: Pair, name: str) -> None:
    case = cases(pair.hub)[name]
    ours = prepared(pair, case)
    reference = pair.hub.run(ours.token_ids, case.media)
    torch.testing.assert_close(ours.embeds, reference.embeds, atol=1e-5, rtol=1e-5)
    if reference.positions is not None:
        assert torch.equal(ours.positions, reference.positions)
    with torch.no_grad():
        attend = ReferenceAttend(pair.target.stack.spec.layers)
        hidden = pair.target.stack.run_layers(ours.embeds, StackInputs(ours.positions, attend)).hidden
        logits = pair.target.stack.logits(hidden)
    assert float((logits - reference.logits).abs().max()) <= 1e-4


@pytest.mark.parametrize("max_prefill_tokens", [8192, 5, 1])
def test_ragged_batches_of_text_and_images_continue_as_transformers_does(pair: Pair, max_prefill_tokens: int) -> None:
    """Chunks of 5 tokens cut every image, chunks of one token cut everywhere."""
    all_cases = list(cases(pair.hub).values())
    prompts = [prepared(pair, case) for case in all_cases]
    found = continued(pair.target, prompts, max_prefill_tokens=max_prefill_tokens)
    expected = [
        pair.hub.generate(one.token_ids, case.media, NEW_TOKENS) for one, case in zip(prompts, all_cases, strict=True)
    ]
    assert found == expected
    assert len({tuple(text) for text in expected}) == len(expected)


def test_drafting_changes_no_text(pair: Pair) -> None:
    """Rows join and leave, rope offsets move with them, and several tokens are verified at once."""
    prompts = [prepared(pair, case) for case in cases(pair.hub).values()]
    plain = [continued(pair.target, [one])[0] for one in prompts]
    assert continued(pair.target, prompts, NgramBuilder(3), 7, max_batch_size=2) == plain


def test_text_beside_images_may_come_without_being_prepared(pair: Pair) -> None:
    case = cases(pair.hub)["one image"]
    image, text = prepared(pair, case), words(6, 11)
    engine = engine_of(pair.target, options=EngineOptions(page_size=4, max_prefill_tokens=8, max_length=100))
    first = engine.submit(Request(image.token_ids, max_new_tokens=NEW_TOKENS, eos_ids=()), image)
    second = engine.submit(Request(tuple(text), max_new_tokens=NEW_TOKENS, eos_ids=()))
    done = drive(engine)
    assert done[first].token_ids == pair.hub.generate(image.token_ids, case.media, NEW_TOKENS)
    assert done[second].token_ids == pair.hub.generate(text, [], NEW_TOKENS)


def test_an_image_in_the_wrong_place_is_noticed(pair: Pair) -> None:
    """The comparison above can fail: another order, another offset, other positions, other rows give other texts."""
    case = cases(pair.hub)["three images"]
    right = prepared(pair, case)
    swapped = media_of(pair.target).prepare(case.token_ids, [case.media[1], case.media[2], case.media[0]])
    assert swapped.token_ids != right.token_ids or not torch.equal(swapped.embeds, right.embeds)
    wrong = [
        swapped,
        evolve(right, position_offset=right.position_offset + 3),
        evolve(right, positions=right.positions.flip(-1)),
        evolve(right, embeds=right.embeds.roll(1, 0)),
    ]
    texts = continued(pair.target, [right, *wrong])
    assert texts[0] == pair.hub.generate(right.token_ids, case.media, NEW_TOKENS)
    assert texts[0] not in texts[1:]


def test_nothing_is_kept_from_one_prompt_to_the_next(pair: Pair) -> None:
    """The same ids with another image, then text alone, then the first again."""
    ids = prompt(pair.hub, words(2, 1), None, words(2, 2))
    provider = media_of(pair.target)
    first, second = provider.prepare(ids, [png(80, 80, 1)]), provider.prepare(ids, [png(80, 80, 2)])
    assert first.token_ids == second.token_ids
    assert not torch.equal(first.embeds, second.embeds)
    text = provider.prepare(words(4, 3), [])
    assert torch.equal(text.embeds, pair.target.stack.embed(torch.tensor(text.token_ids)))
    again = provider.prepare(ids, [png(80, 80, 1)])
    assert torch.equal(again.embeds, first.embeds)


def test_the_precision_asked_for_is_that_of_tower_and_decoder(pair: Pair, tmp_path: Path) -> None:
    target = load(pair.hub.save(tmp_path), torch.bfloat16)
    case = cases(pair.hub)["one image"]
    ours = media_of(target).prepare(case.token_ids, case.media)
    assert ours.embeds.dtype == target.stack.spec.dtype == torch.bfloat16
    assert relative_error(ours.embeds, prepared(pair, case).embeds) < 0.05


def relative_error(found: Tensor, exact: Tensor) -> float:
    difference = found.cpu().float() - exact
    return float((difference.square().sum() / exact.square().sum()).sqrt())


@pytest.mark.gpu
def test_on_a_gpu_images_are_placed_alike(pair: Pair, tmp_path: Path) -> None:
    target = load(pair.hub.save(tmp_path), device=torch.device("cuda", torch.cuda.current_device()))
    for case in cases(pair.hub).values():
        ours, exact = media_of(target).prepare(case.token_ids, case.media), prepared(pair, case)
        # Convolutions round their inputs to TF32 there.
        assert relative_error(ours.embeds, exact.embeds) < 1e-2
        assert torch.equal(ours.positions.cpu(), exact.positions)
        assert ours.embeds.device == ours.positions.device == target.stack.spec.device
