"""The trained pair with images: every way of running it says what the target alone says, and that is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, cast

import pytest
import torch
from attrs import evolve, frozen
from PIL import Image
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from examples.digits.questions import SEE, TASKS, Task
from outrider import registry
from outrider._torch import int_rows
from outrider.generation.model import Prompt
from outrider.generation.prompts import encode_prompt
from outrider.interfaces import (
    ChatMessage,
    GraphRunner,
    MediaBody,
    MultimodalProvider,
    PreparedPrompt,
    Verifier,
    VideoFrames,
)
from outrider.loop.prompts import PrefillPrompt, spans_of
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier
from tests.examples.digits.pair import load_processor
from tests.multimodal.pair import (
    BOTH,
    CPU,
    IMAGE_TOKENS,
    IMAGES,
    MIXED,
    SUM,
    SeeingPair,
    about,
    load_seeing_pair,
    model_of,
    plain_texts,
    right_answer,
    seeing_pair,
    texts_of,
)
from tests.support.runners import RUNNERS

STEPS = {"eager": "eager", "rounds": "round", "phases": "phase", "breakable": "breakable"}
"""By runner, the step of the ladder that is to run most of what is asked."""


def said(token_ids: Sequence[int]) -> str:
    codec = seeing_pair().target.codec
    assert codec is not None
    return codec.decode(token_ids)


class _Generates(Protocol):
    def generate(self, **inputs: object) -> Tensor: ...


def test_it_says_what_transformers_says() -> None:
    """From the same files, by its processor, its chat template, its tower and its loop."""
    directory = registry.pair("tiny-llava").target
    processor = load_processor(directory)
    loaded: object = LlavaForConditionalGeneration.from_pretrained(directory)  # pyright: ignore[reportUnknownMemberType] - untyped there
    model = cast("_Generates", loaded)
    prompts = (*MIXED, *(about(row, asking=SUM.wordings[0]) for row in IMAGES))
    for prompt, found in zip(prompts, plain_texts(prompts), strict=True):
        assert isinstance(prompt.content, str)
        text, images = prompt.content, [Image.open(IMAGES[row]) for row in rows_of(prompt)]
        if images:
            parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
            text = processor.rendered([{"role": "user", "content": parts}])
        inputs: dict[str, object] = {"input_ids": processor.ids(text, images or None)[None]}
        if images:
            inputs["pixel_values"] = processor.pixels(images)
        length = cast("Tensor", inputs["input_ids"]).shape[1]
        inputs["attention_mask"] = torch.ones(1, length, dtype=torch.int64)
        theirs = model.generate(**inputs, max_new_tokens=len(found), do_sample=False)
        assert int_rows(theirs[:, length:]) == [list(found)]


def rows_of(prompt: Prompt) -> list[str]:
    """The digits of a prompt's images."""
    names = {path.read_bytes(): row for row, path in IMAGES.items()}
    return [names[data] for data in prompt.images if isinstance(data, bytes)]


@pytest.mark.parametrize("task", [SEE, SUM, TASKS[1], TASKS[2]], ids=lambda task: task.promise)
def test_it_reads_each_of_the_pictures(task: Task) -> None:
    prompts = tuple(about(row, asking=task.wordings[0]) for row in IMAGES)
    assert [said(ids) for ids in plain_texts(prompts)] == [right_answer(task, row) for row in IMAGES]


# -- runners and drafts ------------------------------------------------------------------------------------------------

WAYS = [
    *((runner, draft) for runner in RUNNERS for draft in ("chain", "tree")),
    *((runner, "off") for runner in ("rounds", "phases", "breakable")),
    ("eager", "static tree"),
    ("rounds", "static tree"),
]


@pytest.mark.parametrize(("runner", "draft"), WAYS)
def test_eight_requests_half_with_images_are_eight_single_runs(runner: str, draft: str) -> None:
    model = model_of(seeing_pair(), draft, RUNNERS[runner], batch=5)
    # Five rows for eight requests: others join while the first ones run, and all of it again in the same graphs.
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))
    assert texts_of(model, MIXED[::-1]) == plain_texts(tuple(MIXED))[::-1]
    assert {by for (_, by), times in model.engine.report.ran.items() if times} >= {STEPS[runner]}


@pytest.mark.parametrize("runner", RUNNERS)
def test_another_image_is_another_answer(runner: str) -> None:
    model = model_of(seeing_pair(), "chain", RUNNERS[runner], batch=1)
    for row in ("73142", "9371", "8", "73142"):
        completion = model.generate(about(row))
        assert completion.text == right_answer(SEE, row)
        assert len(completion.prompt_token_ids) == len(model.generate(about("2058")).prompt_token_ids)


@pytest.mark.parametrize(("runner", "draft"), [*((runner, "chain") for runner in RUNNERS), ("rounds", "tree")])
def test_text_after_an_image_is_that_of_a_fresh_model(runner: str, draft: str) -> None:
    text = Prompt("<|begin|>USER: What do you see?\nASSISTANT:\n")
    fresh = model_of(load_seeing_pair(CPU), draft, RUNNERS[runner]).generate(text)
    assert fresh.text == right_answer(SEE)
    used = model_of(seeing_pair(), draft, RUNNERS[runner])
    before = used.generate(text)
    for row in ("73142", "41763"):
        assert used.generate(about(row)).text == right_answer(SEE, row)
        after = used.generate(text)
        assert (after.token_ids, after.accept_lengths) == (fresh.token_ids, fresh.accept_lengths)
    assert (before.token_ids, before.accept_lengths) == (fresh.token_ids, fresh.accept_lengths)


@pytest.mark.parametrize("runner", RUNNERS)
def test_two_images_keep_their_order(runner: str) -> None:
    model = model_of(seeing_pair(), "chain", RUNNERS[runner])
    for rows in (("05", "118"), ("118", "05"), ("96", "96")):
        assert model.generate(about(*rows, asking=BOTH.wordings[0])).text == right_answer(BOTH, *rows)


@pytest.mark.parametrize(
    ("runner", "budget"),
    [
        *(("eager", budget) for budget in (7, 40, IMAGE_TOKENS, 100)),
        *((runner, 40) for runner in RUNNERS if runner != "eager"),
    ],
)
def test_a_prompt_may_be_cut_in_the_middle_of_an_image(runner: str, budget: int) -> None:
    model = model_of(seeing_pair(), "chain", RUNNERS[runner], batch=3, budget=budget)
    first = [encode_prompt(model.target, prompt, place, 512) for place, prompt in enumerate(MIXED[:3])]
    placed = [PrefillPrompt.of(each.token_ids, each.prepared) for each in first]
    cut = False
    left, num_done = placed, 0
    while left:
        *_, last = spans_of(left, num_done, budget)
        cut |= any(start < last.end < end for start, end in left[last.index].media)
        left = left[last.index + last.completes :]
        num_done = 0 if last.completes else last.end
    assert cut
    assert texts_of(model, MIXED) == plain_texts(tuple(MIXED))


def test_two_streams_of_one_model_keep_their_images() -> None:
    model = model_of(seeing_pair())
    rows = ("73142", "602")
    texts = ["", ""]
    for deltas in zip_longest(*(model.stream(about(row)) for row in rows)):
        texts = [text + (delta.text if delta else "") for text, delta in zip(texts, deltas, strict=True)]
    assert texts == [right_answer(SEE, row) for row in rows]


# -- verifiers and sampling --------------------------------------------------------------------------------------------

LOSSLESS: Sequence[tuple[str, Verifier]] = [
    ("chain", ExactVerifier()),
    ("tree", ExactVerifier()),
    ("chain", RejectionVerifier()),
    ("tree", RejectionVerifier()),
    ("static tree", RejectionVerifier()),
    ("chain", BlockVerifier()),
]


@pytest.mark.parametrize(("draft", "verifier"), LOSSLESS, ids=lambda value: type(value).__name__)
def test_drafting_changes_no_answer(draft: str, verifier: Verifier) -> None:
    prompts = [about(row, asking=task.wordings[0]) for row in IMAGES for task in (SEE, SUM)]
    found = texts_of(model_of(seeing_pair(), draft, verifier=verifier), prompts)
    assert found == texts_of(model_of(seeing_pair(), "off"), prompts)
    assert [said(ids) for ids in found] == [right_answer(task, row) for row in IMAGES for task in (SEE, SUM)]


@pytest.mark.parametrize("runner", ["eager", "rounds"])
@pytest.mark.parametrize("draft", ["chain", "tree"])
def test_seeded_sampling_is_that_of_plain_decoding(draft: str, runner: str) -> None:
    """So hot that the answers go astray in different ways."""
    plain, drafted = model_of(seeing_pair(), "off"), model_of(seeing_pair(), draft, RUNNERS[runner])
    texts: set[tuple[int, ...]] = set()
    for seed in (1, 2):
        wanted = plain.generate_batch(MIXED, temperature=2.5, top_k=20, seed=seed, max_new_tokens=12).completions
        found = drafted.generate_batch(MIXED, temperature=2.5, top_k=20, seed=seed, max_new_tokens=12).completions
        assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
        texts |= {each.token_ids for each in found}
    assert len(texts) > len(MIXED), "another seed, another text"


# -- what the checks above would find ----------------------------------------------------------------------------------


@frozen(eq=False)
class Careless(MultimodalProvider):
    """Places images as ``inner`` does, and then loses them."""

    inner: MultimodalProvider
    pair: SeeingPair
    keeps_first: bool
    kept: dict[int, PreparedPrompt]

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        return self.inner.bodies

    @property
    def reads_videos(self) -> bool:
        return self.inner.reads_videos

    def prepare(
        self,
        text: str | Sequence[int],
        media: Sequence[bytes],
        max_tokens: int | None = None,
        runner: GraphRunner | None = None,
        videos: Sequence[VideoFrames] = (),
    ) -> PreparedPrompt:
        prepared = self.inner.prepare(text, media, max_tokens, runner, videos)
        if not self.keeps_first:
            return evolve(prepared, embeds=self.pair.target.stack.embed(torch.tensor(prepared.token_ids)))
        return self.kept.setdefault(len(prepared.token_ids), prepared)

    def count_placeholders(self, text: str | Sequence[int]) -> int:
        return self.inner.count_placeholders(text)

    def render_chat(self, messages: Sequence[ChatMessage]) -> str | None:
        return self.inner.render_chat(messages)


@pytest.mark.parametrize("keeps_first", [False, True])
def test_a_lost_image_is_seen_in_the_answer(keeps_first: bool) -> None:
    pair = seeing_pair()
    assert pair.target.media is not None
    target = evolve(pair.target, media=Careless(pair.target.media, pair, keeps_first, {}))
    model = model_of(evolve(pair, target=target))
    rows: Mapping[str, str] = {row: model.generate(about(row)).text for row in ("73142", "9371", "8")}
    right = [row for row, text in rows.items() if text == right_answer(SEE, row)]
    assert right == (["73142"] if keeps_first else [])


def test_pictures_are_small_and_of_this_folder() -> None:
    assert len(IMAGES) == 10
    assert all(path.stat().st_size < 1024 for path in IMAGES.values())
    assert {path.parent for path in IMAGES.values()} == {Path(__file__).parent / "images"}
