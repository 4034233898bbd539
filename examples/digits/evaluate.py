"""What the pair reaches on digits that were held out: accuracy, exact answers, acceptance length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import torch
import torch.nn.functional as functional
from attrs import frozen
from tokenizers import Tokenizer
from torch import Tensor

from examples.digits.dialogue import Dialogue, asked
from examples.digits.distil import said
from examples.digits.draft import EagleHead
from examples.digits.model import END_ID, Reader
from examples.digits.pool import Pool, make_pool
from examples.digits.questions import SEE, answer
from examples.digits.render import PLAIN
from examples.digits.scans import Scans
from examples.digits.words import DIGITS

__all__ = [
    "CHAIN",
    "Acceptance",
    "Accuracy",
    "acceptance",
    "digits_right",
    "exact_answers",
    "generate",
    "read_rows",
    "rows_pool",
]

CHAIN = 5
_LONGEST_ANSWER = 60
_CHUNK = 128


@frozen
class Accuracy:
    """Of ``num_digits`` digits in ``num_rows`` images, how many were read right, each in its place; and whole rows."""

    num_digits: int
    digits_right: int
    num_rows: int
    rows_right: int

    @property
    def digits(self) -> float:
        """The part of the digits."""
        return self.digits_right / self.num_digits

    @property
    def rows(self) -> float:
        """The part of the rows."""
        return self.rows_right / self.num_rows


@frozen
class Acceptance:
    """Tokens that passes of the target emitted, the bonus included, with a greedy chain of `CHAIN`."""

    tokens: int
    passes: int

    @property
    def length(self) -> float:
        """Tokens a pass."""
        return self.tokens / max(self.passes, 1)


def rows_pool(tokenizer: Tokenizer, count: int, rng: Random, device: torch.device) -> Pool:
    """``count`` random rows of one digit to eight, all with the same question: `SEE`'s first wording."""
    dialogues: list[Dialogue] = []
    for _ in range(count):
        digits = [rng.randrange(10) for _ in range(rng.randint(1, 8))]
        dialogues.append(asked(SEE.wordings[0], answer(SEE, [digits]), [digits]))
    return make_pool(tokenizer, dialogues, device)


@torch.no_grad()
def read_rows(reader: Reader, tokenizer: Tokenizer, pool: Pool, scans: Scans, generator: torch.Generator) -> Accuracy:
    """Let the target read the rows of `rows_pool` from plain images of ``scans``, word by word."""
    num_digits = num_right = rows_right = 0
    for part in _chunks(pool):
        batch = pool.take(part, scans, PLAIN, generator)
        prompt = int((~batch.answered[0]).cumprod(dim=0).sum())
        pixels_NCYX = batch.pixels
        patches = None if pixels_NCYX is None else reader.patches(pixels_NCYX)
        ids_BT = generate(reader, batch.ids[:, :prompt], patches)
        for ids, digits, count in zip(ids_BT.cpu(), batch.digits.cpu(), pool.counts[part].flatten().cpu(), strict=True):
            expected = [int(digit) for digit in digits[: int(count)]]
            right, all_right = digits_right(tokenizer.decode([int(token) for token in ids]), expected)
            num_digits, num_right, rows_right = num_digits + len(expected), num_right + right, rows_right + all_right
    return Accuracy(num_digits, num_right, len(pool), rows_right)


def digits_right(text: str, expected: Sequence[int]) -> tuple[int, bool]:
    """How many of ``expected`` the list in ``text``, after its colon, names in their places; whether it names just them."""
    words = text.partition(":")[2].replace(".", " ").replace(",", " ").split()
    found = [DIGITS.index(word) for word in words if word in DIGITS]
    right = sum(said_digit == digit for said_digit, digit in zip(found, expected, strict=False))
    return right, found == [*expected]


@torch.no_grad()
def generate(reader: Reader, prompts_BT: Tensor, patches_BPD: Tensor | None) -> Tensor:
    """Greedy answers to prompts of one length: ids ``[B, N]``, filled up with `END_ID` after an answer's end."""
    embeds_BTH = reader.merged(prompts_BT, patches_BPD)
    answers: list[Tensor] = []
    ended_B = torch.zeros(len(prompts_BT), dtype=torch.bool, device=prompts_BT.device)
    while len(answers) < _LONGEST_ANSWER and not bool(ended_B.all()):
        next_B = reader(embeds_BTH)[:, -1].argmax(dim=-1).masked_fill(ended_B, END_ID)
        answers.append(next_B)
        ended_B |= next_B == END_ID
        embeds_BTH = torch.cat((embeds_BTH, reader.merged(next_B[:, None], None)), dim=1)
    return torch.stack(answers, dim=1)


@torch.no_grad()
def exact_answers(reader: Reader, pools: Sequence[Pool], scans: Scans, generator: torch.Generator) -> float:
    """The part of dialogues whose answers the target gives word for word.

    A greedy answer equals the right one just when each of its tokens is the greedy choice after those before it.
    """
    exact = total = 0
    for pool in pools:
        for part in _chunks(pool):
            batch = pool.take(part, scans, PLAIN, generator)
            own_BT = said(reader, batch).own
            exact += int((own_BT == batch.answered).all(dim=1).sum())
            total += len(part)
    return exact / total


@torch.no_grad()
def acceptance(reader: Reader, head: EagleHead, pool: Pool, scans: Scans, generator: torch.Generator) -> Acceptance:
    """How far chains of the head are accepted in the target's own answers to the dialogues of ``pool``.

    Each pass of the target starts at the token that the one before emitted last; the first of an answer comes from the
    prompt. Chains are drafted from features of the target, so that what a chain proposes does not depend on how its
    start was reached: all of them are drafted at once.
    """
    tokens = passes = 0
    for part in _chunks(pool):
        batch = pool.take(part, scans, PLAIN, generator)
        spoken = said(reader, batch)
        drafted_BRK = head.drafted(spoken.features, spoken.embeds, CHAIN, reader.embedding)
        accepted_BR = accepted_counts(drafted_BRK, batch.ids, spoken.own)
        for own_T, accepted_R in zip(spoken.own.cpu(), accepted_BR.cpu(), strict=True):
            found = emitted_by_passes([bool(own) for own in own_T], [int(count) for count in accepted_R])
            tokens, passes = tokens + sum(found), passes + len(found)
    return Acceptance(tokens, passes)


def _chunks(pool: Pool) -> Iterator[Tensor]:
    """The rows of ``pool``, some at a time."""
    for start in range(0, len(pool), _CHUNK):
        yield torch.arange(start, min(start + _CHUNK, len(pool)), device=pool.ids.device)


def accepted_counts(drafted_BRK: Tensor, ids_BT: Tensor, own_BT: Tensor) -> Tensor:
    """How many tokens of the chain after token i + 1 are the target's own, up to the first that is not: ``[B, R]``."""
    steps = drafted_BRK.shape[-1]
    following_BRK = functional.pad(ids_BT, (0, steps)).unfold(1, steps, 1)[:, 2 : ids_BT.shape[1] + 1]
    own_BRK = functional.pad(own_BT, (0, steps)).unfold(1, steps, 1)[:, 2 : ids_BT.shape[1] + 1]
    return ((drafted_BRK == following_BRK) & own_BRK).cumprod(dim=-1).sum(dim=-1)


def emitted_by_passes(own: Sequence[bool], accepted: Sequence[int]) -> list[int]:
    """Tokens that each pass emits in a row: what is accepted after its root, and one more where the answer goes on.

    ``own`` marks the tokens of answers; ``accepted[i]`` belongs to the chain whose root is token i + 1.
    """
    emitted: list[int] = []
    root = own.index(True) if True in own else len(own)
    while root < len(own):
        count = accepted[root - 1]
        if root + count + 1 < len(own) and own[root + count + 1]:
            count += 1
        if count:
            emitted.append(count)
        root += count
        if not count:
            # The answer ends here: the next one's first token comes from its prompt.
            root = own.index(True, root + 1) if True in own[root + 1 :] else len(own)
    return emitted
