"""Small talk: what the model answers when the question is about no image."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from examples.digits.words import DIGITS, joined, listed, number

__all__ = ["FIXED", "small_talk"]

FIXED = (
    (("Hello.", "Hi.", "Hello!", "Good morning."), "Hello! Show me an image of digits, and I will read it to you."),
    (
        ("Who are you?", "What are you?", "Tell me about yourself."),
        "I am a small model that reads handwritten digits. I was trained in a few minutes, and I know little else.",
    ),
    (
        ("What can you do?", "Help.", "How can you help me?"),
        "I can read the digits in an image, count them, add them up, sort them, and find the largest of them.",
    ),
    (("How are you?", "How do you do?"), "I am well, thank you. I have read many digits today."),
    (("Thank you.", "Thanks.", "Thank you!"), "You are welcome. Show me another image if you like."),
    (("Goodbye.", "Bye.", "See you."), "Goodbye! Come back when you have more digits to read."),
    (("What is your name?",), "I have no name. I am a small model that reads handwritten digits."),
    (
        ("What is speculative decoding?", "What is a draft?", "What does a draft do?"),
        "A small draft guesses the next words, and the large model checks all of them in one pass. "
        "What the large model would not have said is thrown away, so the answer stays the same.",
    ),
    (
        ("Why is that faster?", "Why are you so fast?"),
        "The large model reads all of its weights once for each pass, so it is faster to check many words in one pass "
        "than to write them one by one.",
    ),
    (
        ("What is a digit?", "What are digits?"),
        "A digit is one of the ten signs with which numbers are written, from zero to nine.",
    ),
    (("Which digits are there?", "Name all digits."), f"The digits are {listed(range(10))}."),
    (("Which numbers below ten are even?",), f"The even numbers below ten are {listed(range(0, 10, 2))}."),
    (("Which numbers below ten are odd?",), f"The odd numbers below ten are {listed(range(1, 10, 2))}."),
    (
        ("Tell me a story.", "Please tell me a story."),
        "One day a seven and a one went for a walk. They met a zero, who had no friends. "
        "The seven and the one took the zero with them, and the three of them were worth more than before.",
    ),
    (("Can you see?", "Do you have eyes?"), "I have no eyes, but I can read the digits in an image that you show me."),
    (("Can you read letters?", "Can you read words?"), "No, I can only read digits. Please show me some."),
)


def _sum(rng: Random) -> tuple[str, str]:
    a, b = rng.randrange(10), rng.randrange(10)
    question = rng.choice((f"What is {number(a)} plus {number(b)}?", f"Add {number(a)} and {number(b)}."))
    return question, f"The sum of {number(a)} and {number(b)} is {number(a + b)}."


def _after(rng: Random) -> tuple[str, str]:
    value = rng.randrange(1, 40)
    if rng.random() < 0.5:
        return f"What comes after {number(value)}?", f"After {number(value)} comes {number(value + 1)}."
    return f"What comes before {number(value)}?", f"Before {number(value)} comes {number(value - 1)}."


def _count(rng: Random) -> tuple[str, str]:
    low, length = rng.randrange(12), rng.randrange(3, 12)
    values = range(low, low + length)
    if rng.random() < 0.5:
        return f"Count from {number(values[0])} to {number(values[-1])}.", f"Here you are: {listed(values)}."
    return f"Count down from {number(values[-1])} to {number(values[0])}.", f"Here you are: {listed(values[::-1])}."


def _in_words(rng: Random) -> tuple[str, str]:
    digits = [rng.randrange(10) for _ in range(rng.randrange(2, 7))]
    return f"Write {''.join(map(str, digits))} in words.", f"In words, the digits are {listed(digits)}."


def _spell(rng: Random) -> tuple[str, str]:
    word = rng.choice(DIGITS)
    return f"Spell {word}.", f"The word {word} is spelled {joined([*word])}."


def _fixed(rng: Random) -> tuple[str, str]:
    questions, reply = rng.choice(FIXED)
    return rng.choice(questions), reply


_KINDS: tuple[Callable[[Random], tuple[str, str]], ...] = (_fixed, _fixed, _sum, _after, _count, _in_words, _spell)


def small_talk(rng: Random) -> tuple[str, str]:
    """A question that needs no image, and its answer."""
    return rng.choice(_KINDS)(rng)
