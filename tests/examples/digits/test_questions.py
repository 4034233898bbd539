"""What is asked and answered: true of the digits, whatever the question."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.digits.dialogue import IMAGE, random_dialogue
from examples.digits.questions import PAIR_TASKS, SEE, TASKS, answer
from examples.digits.words import DIGITS, listed, number

digits_of_an_image = st.lists(st.integers(0, 9), min_size=1, max_size=8)
ASKED = {wording: task for task in TASKS for wording in task.wordings}
ALL_NUMBERS = {number(value): value for value in range(100)}


def named(text: str) -> list[int]:
    """The numbers that ``text`` names, in order."""
    words = text.replace(",", " ").replace(".", " ").replace(":", " ").split()
    return [ALL_NUMBERS[word] for word in words if word in ALL_NUMBERS]


def test_numbers_have_different_names() -> None:
    assert len(ALL_NUMBERS) == 100
    assert [number(value) for value in (0, 9, 10, 19, 20, 21, 72)] == [
        "zero",
        "nine",
        "ten",
        "nineteen",
        "twenty",
        "twenty-one",
        "seventy-two",
    ]


def test_answers_read_as_documented() -> None:
    row = [3, 7, 1, 4, 2]
    assert answer(SEE, [row]) == "I see five digits: three, seven, one, four and two."
    assert answer(ASKED["Add them up."], [row[:3]]) == (
        "Let us add them: three plus seven is ten, plus one is eleven. So the sum is eleven."
    )
    assert answer(ASKED["Is there an eight?"], [row[:2]]) == "No, there is no eight: I see three and seven."
    assert answer(ASKED["Which digits are even?"], [[3, 7]]) == "Of three and seven, none is even."
    assert answer(PAIR_TASKS[0], [[1], []]) == (
        "In the first image I see one digit: one. In the second image I see no digit."
    )
    assert answer(SEE, []) == "I see no image. Please show me one, and I will tell you what I see."


@given(digits_of_an_image)
def test_reading_names_the_digits_in_order(row: list[int]) -> None:
    assert named(answer(SEE, [row])) == [len(row), *row]
    if len(row) > 1:
        assert named(answer(ASKED["Read the digits."], [row])) == row
        assert named(answer(ASKED["Read them backwards."], [row])) == row[::-1]
    assert named(answer(ASKED["Sort them."], [row])) == sorted(row)
    assert named(answer(ASKED["How many digits are there?"], [row])) == [len(row)]


@given(digits_of_an_image)
def test_what_is_computed_is_right(row: list[int]) -> None:
    assert named(answer(ASKED["What is the sum?"], [row]))[-1] == sum(row)
    assert named(answer(ASKED["Which is the largest?"], [row])) == [*row, max(row)]
    assert named(answer(ASKED["Which is the smallest?"], [row])) == [*row, min(row)]
    for digit in range(10):
        article = "an" if digit == 8 else "a"
        said_yes = answer(ASKED[f"Is there {article} {DIGITS[digit]}?"], [row]).startswith("Yes")
        assert said_yes == (digit in row)


@given(digits_of_an_image, digits_of_an_image)
def test_two_images_are_compared(first: list[int], second: list[int]) -> None:
    both, more = PAIR_TASKS
    assert named(answer(both, [first, second])) == [len(first), *first, len(second), *second]
    verdict = answer(more, [first, second]).partition(":")[2]
    assert ("first" in verdict, "second" in verdict) == (len(first) > len(second), len(first) < len(second))


def test_every_question_is_answered_for_any_number_of_images() -> None:
    for task in TASKS:
        assert "no image" in answer(task, [])
        assert "empty" in answer(task, [[]])
        assert task.promise in answer(task, [[1], [2]])
    for pair_task in PAIR_TASKS:
        assert "no image" in answer(pair_task, [])
        assert "only one image" in answer(pair_task, [[1]])
        assert pair_task.promise in answer(pair_task, [[1]])


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_dialogues_are_of_the_seed_and_show_each_image_once(num_images: int) -> None:
    rng, again = Random(3), Random(3)
    for _ in range(300):
        dialogue = random_dialogue(rng, num_images)
        assert dialogue == random_dialogue(again, num_images)
        assert sum(segment.text.count(IMAGE) for segment in dialogue.segments) == len(dialogue.images) == num_images
        assert [segment.answered for segment in dialogue.segments][-1]


def test_the_same_question_has_one_answer() -> None:
    rng = Random(4)
    answers: dict[tuple[str, int], str] = {}
    for _ in range(4000):
        dialogue = random_dialogue(rng, 0)
        if len(dialogue.segments) == 2:
            asked, said = dialogue.segments
            assert answers.setdefault((asked.text, 0), said.text) == said.text


def test_lists_have_commas_and_one_and() -> None:
    assert [listed(range(count)) for count in (1, 2, 3)] == ["zero", "zero and one", "zero, one and two"]
