"""Dialogues about images of digits, and how they are written down for the model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from attrs import frozen

from examples.digits.questions import PAIR_TASKS, TASKS, PairTask, Task, answer, choose
from examples.digits.talk import FIXED, small_talk

__all__ = [
    "BEGIN",
    "CHAT_TEMPLATE",
    "END",
    "IMAGE",
    "MAX_DIGITS",
    "PAD",
    "Dialogue",
    "Segment",
    "asked",
    "chat_prompt",
    "every_text",
    "random_dialogue",
]

END, BEGIN, PAD, IMAGE = "<|end|>", "<|begin|>", "<|pad|>", "<image>"
MAX_DIGITS = 8

CHAT_TEMPLATE = (
    "{% macro written(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if part['type'] == 'image' %}{{ '<image>\\n' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endmacro %}"
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ 'ASSISTANT:\\n' + written(message['content']) + '<|end|>\\n' }}{% else %}"
    "{{ 'USER: ' + written(message['content']) + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:\\n' }}{% endif %}"
)
"""Images and texts stand in the order in which they are given; a message that is no answer is the user's."""


@frozen
class Segment:
    """A part of a dialogue: ``text`` that was given, or that the model answers."""

    text: str
    answered: bool


@frozen
class Dialogue:
    """What is said about ``images``, each the digits that it shows; one `IMAGE` stands for each in the text."""

    images: tuple[tuple[int, ...], ...]
    segments: tuple[Segment, ...]


def chat_prompt(question: str, num_images: int) -> str:
    """What `CHAT_TEMPLATE` makes of images followed by a question."""
    return f"{BEGIN}USER: {_images(num_images)}{question}\nASSISTANT:\n"


def asked(question: str, reply: str, images: Sequence[Sequence[int]]) -> Dialogue:
    """One question in the form of the chat template, and its answer."""
    segments = (Segment(chat_prompt(question, len(images)), False), Segment(f"{reply}{END}", True))
    return Dialogue(tuple(tuple(digits) for digits in images), segments)


def random_dialogue(rng: Random, num_images: int) -> Dialogue:
    """A dialogue about ``num_images`` random images: mostly one question in the chat form, at times two, or none."""
    images = tuple(_random_digits(rng) for _ in range(num_images))
    question, reply = _exchange(rng, images)
    style = rng.random()
    if style < 0.12:
        return Dialogue(images, _plain(question, reply, num_images))
    if style < 0.24:
        text = f"{BEGIN}USER: {question}{_images(num_images)}\nASSISTANT:\n"
        return Dialogue(images, (Segment(text, False), Segment(f"{reply}{END}", True)))
    dialogue = asked(question, reply, images)
    if style > 0.8 and num_images < 2:
        question, reply = _exchange(rng, images)
        more = (Segment(f"\nUSER: {question}\nASSISTANT:\n", False), Segment(f"{reply}{END}", True))
        return Dialogue(images, dialogue.segments + more)
    return dialogue


def _images(count: int) -> str:
    return f"{IMAGE}\n" * count


def every_text() -> list[str]:
    """Every question and every fixed answer, for a tokenizer that has seen them all."""
    tasks: tuple[Task | PairTask, ...] = (*TASKS, *PAIR_TASKS)
    texts = [f"USER: {wording}\nASSISTANT:\n" for task in tasks for wording in task.wordings]
    texts += [answer(task, ()) for task in tasks]
    texts += [f"{' '.join(questions)} {reply}" for questions, reply in FIXED]
    return texts


def _plain(question: str, reply: str, num_images: int) -> tuple[Segment, ...]:
    """The form without a chat: the answer goes on where the question ends."""
    return Segment(f"{BEGIN}{_images(num_images)}{question}", False), Segment(f" {reply}{END}", True)


def _random_digits(rng: Random) -> tuple[int, ...]:
    count = 0 if rng.random() < 0.04 else rng.randint(1, MAX_DIGITS)
    return tuple(rng.randrange(10) for _ in range(count))


def _exchange(rng: Random, images: tuple[tuple[int, ...], ...]) -> tuple[str, str]:
    num_images = len(images)
    if rng.random() < (0.5, 0.04, 0.02)[num_images]:
        return small_talk(rng)
    paired = rng.random() < (0.1, 0.03, 0.9)[num_images]
    task: Task | PairTask = rng.choice(PAIR_TASKS) if paired else choose(rng)
    # What is asked in the same words of one image and of two is answered for as many as are there.
    wording = rng.choice(task.wordings)
    for other in PAIR_TASKS if num_images > 1 else TASKS:
        if wording in other.wordings:
            task = other
    return wording, answer(task, images)
