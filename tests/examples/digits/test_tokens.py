"""Tokenizer, chat template and processor: what is read from files is what training used."""

from __future__ import annotations

from random import Random

import pytest
import torch
from PIL import Image

from examples.digits.dialogue import BEGIN, IMAGE, chat_prompt, random_dialogue
from examples.digits.model import BEGIN_ID, END_ID, IMAGE_ID, PAD_ID
from examples.digits.pool import make_pool
from examples.digits.settings import DRAFT_VOCAB_SIZE, IMAGE_TOKENS, VOCAB_SIZE
from examples.digits.tokens import train_tokenizer
from tests.examples.digits.pair import small_processor, small_tokenizer

CANVAS = Image.new("RGB", (64, 64), "white")


def test_ids_are_those_of_the_model() -> None:
    tokenizer = small_tokenizer()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    texts = ("<|end|>", "<|begin|>", "<|pad|>", "<image>")
    assert [tokenizer.token_to_id(text) for text in texts] == [END_ID, BEGIN_ID, PAD_ID, IMAGE_ID]


def test_training_it_again_gives_the_same() -> None:
    assert train_tokenizer(0).to_str() == small_tokenizer().to_str()


def test_digits_are_one_token_each_and_any_text_comes_back() -> None:
    tokenizer = small_tokenizer()
    for word in ("zero", "three", "seven", "eight"):
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) == 1
    for text in ("Grüße, 世界 \U0001f642", "a\tb\r\n  c", " leading"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_answers_fit_the_vocabulary_of_the_draft() -> None:
    pool = make_pool(small_tokenizer(), [random_dialogue(Random(seed), 0) for seed in range(800)], torch.device("cpu"))
    assert int((torch.bincount(pool.ids[pool.answered]) > 0).sum()) <= DRAFT_VOCAB_SIZE


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_the_chat_template_is_what_was_trained_on(num_images: int) -> None:
    content = [*[{"type": "image"}] * num_images, {"type": "text", "text": "What do you see?"}]
    rendered = small_processor().rendered([{"role": "user", "content": content}])
    assert rendered == chat_prompt("What do you see?", num_images)


def test_a_conversation_goes_on_as_in_training() -> None:
    rng = Random(1)
    dialogues = [random_dialogue(rng, 1) for _ in range(100)]
    dialogue = next(found for found in dialogues if len(found.segments) > 2)
    first, reply, second, _ = (segment.text for segment in dialogue.segments)
    question = first.removeprefix(f"{BEGIN}USER: {IMAGE}\n").removesuffix("\nASSISTANT:\n")
    more = second.removeprefix("\nUSER: ").removesuffix("\nASSISTANT:\n")
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": reply.removesuffix("<|end|>")}]},
        {"role": "user", "content": more},
    ]
    assert small_processor().rendered(messages) == first + reply + second


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_the_processor_makes_of_a_prompt_the_ids_that_training_used(num_images: int) -> None:
    rng = Random(2)
    dialogues = [random_dialogue(rng, num_images) for _ in range(20)]
    pool = make_pool(small_tokenizer(), dialogues, torch.device("cpu"))
    kept = iter(zip(pool.ids, pool.answered, strict=True))
    assert len(pool) == len(dialogues), "none of these is too long"
    for dialogue, (ids, answered) in zip(dialogues, kept, strict=True):
        prompt = int((~answered).int().cumprod(dim=0).sum())
        text = dialogue.segments[0].text.removeprefix(BEGIN)
        read = small_processor().ids(text, [CANVAS] * num_images or None)
        assert torch.equal(read, ids[:prompt])
        assert int((read == IMAGE_ID).sum()) == num_images * IMAGE_TOKENS
