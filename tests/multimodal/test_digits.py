"""How well the pair reads digits of other writers than it was trained on, through the package's own loader and processor."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from random import Random

import pytest
import torch
from attrs import frozen

from examples.digits.draw import draw_row
from examples.digits.evaluate import digits_right
from examples.digits.questions import SEE
from examples.digits.scans import load_scans
from examples.digits.settings import SIDE
from outrider.generation.completion import BatchResult
from outrider.generation.model import Prompt
from tests.multimodal.pair import model_of, seeing_pair

NUM_ROWS = 90


@frozen
class Rows:
    """Rows of digits, and a file of each."""

    digits: tuple[tuple[int, ...], ...]
    files: tuple[bytes, ...]


@cache
def held_out(side: int = SIDE) -> Rows:
    """Random rows of one digit to eight, drawn from scans that are held out."""
    rng, generator = Random(3), torch.Generator().manual_seed(3)
    scans = load_scans(torch.device("cpu"))[1]
    rows = tuple(tuple(rng.randrange(10) for _ in range(rng.randint(1, 8))) for _ in range(NUM_ROWS))
    files: list[bytes] = []
    for digits in rows:
        buffer = BytesIO()
        draw_row(digits, scans, generator, side).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return Rows(rows, tuple(files))


@cache
def read(draft: str, side: int = SIDE) -> BatchResult:
    """What the pair sees on each row."""
    prompts = [Prompt(SEE.wordings[0], images=[file]) for file in held_out(side).files]
    return model_of(seeing_pair(), draft).generate_batch(prompts)


def share_right(result: BatchResult, rows: Rows) -> float:
    """The part of all digits that are named in their places."""
    right = sum(
        digits_right(completion.text, digits)[0]
        for completion, digits in zip(result.completions, rows.digits, strict=True)
    )
    return right / sum(map(len, rows.digits))


@pytest.mark.parametrize("side", [SIDE, 2 * SIDE, 100])
def test_97_of_100_digits_are_right(side: int) -> None:
    """Files of other sizes are brought to the model's by its processor."""
    assert share_right(read("chain", side), held_out(side)) >= 0.97


def test_drafting_changes_none_of_them_and_saves_half_of_the_passes() -> None:
    plain = [(each.text, each.token_ids) for each in read("off").completions]
    for draft in ("chain", "tree"):
        result = read(draft)
        assert [(each.text, each.token_ids) for each in result.completions] == plain
        assert result.statistics.mean_acceptance_length >= 2.5
        assert result.statistics.num_target_passes < 0.5 * read("off").statistics.num_target_passes


def test_a_digit_that_is_misread_counts_as_wrong() -> None:
    rows = held_out()
    shifted = Rows(tuple(tuple((digit + 1) % 10 for digit in row) for row in rows.digits), rows.files)
    assert share_right(read("chain"), shifted) < 0.1
