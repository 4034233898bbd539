"""What one can ask about images of digits, and the answers: each a function of the digits alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from attrs import frozen

from examples.digits.words import DIGITS, listed, number

__all__ = ["PAIR_TASKS", "SEE", "TASKS", "PairTask", "Task", "answer", "choose"]


@frozen
class Task:
    """A question about one image in several wordings.

    ``promise`` is what the model offers to do when no image is there; ``reply`` answers for one digit or more.
    """

    wordings: tuple[str, ...]
    promise: str
    reply: Callable[[Sequence[int]], str]
    weight: float = 1.0


@frozen
class PairTask:
    """A question about two images; ``reply`` answers for the digits of both, either of which may be empty."""

    wordings: tuple[str, ...]
    promise: str
    reply: Callable[[Sequence[int], Sequence[int]], str]


def counted(digits: Sequence[int]) -> str:
    """How many digits: ``one digit``, ``five digits``, ``no digit``."""
    if not digits:
        return "no digit"
    return f"{number(len(digits))} digit{'s' if len(digits) > 1 else ''}"


def seen(digits: Sequence[int]) -> str:
    """``five digits: three, seven, one, four and two``."""
    return f"{counted(digits)}: {listed(digits)}" if digits else counted(digits)


def _read(digits: Sequence[int]) -> str:
    if len(digits) == 1:
        return f"There is only one digit, and it is {number(digits[0])}."
    return f"The digits, from left to right, are {listed(digits)}."


def _backwards(digits: Sequence[int]) -> str:
    if len(digits) == 1:
        return f"There is only one digit, and it is {number(digits[0])}."
    return f"From right to left, the digits are {listed(digits[::-1])}."


def _sum(digits: Sequence[int]) -> str:
    if len(digits) == 1:
        return f"There is only one digit, so the sum is {number(digits[0])}."
    totals = list(accumulate(digits))
    steps = [f"{number(digits[0])} plus {number(digits[1])} is {number(totals[1])}"]
    steps += [f"plus {number(d)} is {number(total)}" for d, total in zip(digits[2:], totals[2:], strict=True)]
    return f"Let us add them: {', '.join(steps)}. So the sum is {number(totals[-1])}."


def _picked(adjective: str, pick: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], str]:
    return lambda digits: f"Of {listed(digits)}, the {adjective} is {number(pick(digits))}."


def _sorted(order: str, falling: bool) -> Callable[[Sequence[int]], str]:
    return lambda digits: f"In {order} order, the digits are {listed(sorted(digits, reverse=falling))}."


def _parity(name: str, remainder: int) -> Callable[[Sequence[int]], str]:
    def reply(digits: Sequence[int]) -> str:
        found = [digit for digit in digits if digit % 2 == remainder]
        if not found:
            return f"Of {listed(digits)}, none is {name}."
        return f"Of {listed(digits)}, the {name} {'ones are' if len(found) > 1 else 'one is'} {listed(found)}."

    return reply


def _article(digit: int) -> str:
    return f"{'an' if digit == 8 else 'a'} {DIGITS[digit]}"


def _contains(digit: int) -> Task:
    def reply(digits: Sequence[int]) -> str:
        verdict = f"Yes, there is {_article(digit)}" if digit in digits else f"No, there is no {DIGITS[digit]}"
        return f"{verdict}: I see {listed(digits)}."

    wordings = (f"Is there {_article(digit)}?", f"Do you see {_article(digit)}?")
    return Task(wordings, f"look for {_article(digit)}", reply, 0.1)


SEE = Task(
    (
        "What do you see?",
        "What is in the image?",
        "Describe the image.",
        "Please tell me what you see.",
        "What does the image show?",
    ),
    "tell you what I see",
    lambda digits: f"I see {seen(digits)}.",
    3.0,
)
TASKS = (
    SEE,
    Task(
        (
            "Read the digits.",
            "Please read the image aloud.",
            "Which digits are written here?",
            "Read them.",
            "What does it say?",
        ),
        "read its digits",
        _read,
        2.0,
    ),
    Task(
        ("Read them backwards.", "Read the digits from right to left.", "Please read it backwards."),
        "read its digits backwards",
        _backwards,
        1.0,
    ),
    Task(
        ("What is the sum?", "Add them up.", "What is the sum of the digits?", "Please add the digits."),
        "add up its digits",
        _sum,
        2.0,
    ),
    Task(
        ("Which is the largest?", "Which digit is the largest?", "What is the largest digit?"),
        "find its largest digit",
        _picked("largest", max),
    ),
    Task(
        ("Which is the smallest?", "Which digit is the smallest?", "What is the smallest digit?"),
        "find its smallest digit",
        _picked("smallest", min),
    ),
    Task(
        ("How many digits are there?", "How many digits do you see?", "Count the digits."),
        "count its digits",
        lambda digits: f"There {'are' if len(digits) > 1 else 'is'} {counted(digits)} in the image.",
        0.7,
    ),
    Task(
        ("Which digit comes first?", "What is the first digit?"),
        "read its first digit",
        lambda digits: f"The first digit is {number(digits[0])}.",
        0.5,
    ),
    Task(
        ("Which digit comes last?", "What is the last digit?"),
        "read its last digit",
        lambda digits: f"The last digit is {number(digits[-1])}.",
        0.5,
    ),
    Task(
        ("Sort them.", "Please sort the digits.", "Put the digits in rising order."),
        "sort its digits",
        _sorted("rising", falling=False),
        0.7,
    ),
    Task(
        ("Put the digits in falling order.", "Sort them from the largest to the smallest."),
        "put its digits in falling order",
        _sorted("falling", falling=True),
        0.7,
    ),
    Task(("Which digits are even?", "Which of them are even?"), "find its even digits", _parity("even", 0), 0.7),
    Task(("Which digits are odd?", "Which of them are odd?"), "find its odd digits", _parity("odd", 1), 0.7),
    *(_contains(digit) for digit in range(10)),
)


def _both(first: Sequence[int], second: Sequence[int]) -> str:
    return f"In the first image I see {seen(first)}. In the second image I see {seen(second)}."


def _more(first: Sequence[int], second: Sequence[int]) -> str:
    counts = f"The first image has {counted(first)}, the second has {counted(second)}"
    if len(first) == len(second):
        return f"{counts}: neither has more."
    return f"{counts}: the {'first' if len(first) > len(second) else 'second'} has more."


PAIR_TASKS = (
    PairTask(
        (
            "What do you see in the two images?",
            "Describe both images.",
            "Describe the images.",
            *SEE.wordings,
        ),
        "tell you what I see in them",
        _both,
    ),
    PairTask(("Which image has more digits?", "Compare the images."), "compare them", _more),
)


def choose(rng: Random) -> Task:
    """One of `TASKS`, by weight."""
    return rng.choices(TASKS, [task.weight for task in TASKS])[0]


def answer(task: Task | PairTask, images: Sequence[Sequence[int]]) -> str:
    """What is answered to ``task`` for the digits of ``images`` (none, one or two of them)."""
    match task, images:
        case Task(), []:
            return f"I see no image. Please show me one, and I will {task.promise}."
        case Task(), [digits]:
            return task.reply(digits) if digits else "The image is empty: I see no digit in it."
        case Task(), _:
            return f"There are two images. Please show me one of them, and I will {task.promise}."
        case PairTask(), [first, second]:
            return task.reply(first, second)
        case PairTask(), [_]:
            return f"I see only one image. Please show me two, and I will {task.promise}."
        case _:
            return f"I see no images. Please show me two, and I will {task.promise}."
