"""The pair that reads digits, the questions that are measured, and how many digits it reads right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random

import torch
from attrs import frozen

from benchmarks._cases import TokenIds
from benchmarks._outrider import preparations
from benchmarks._race import Answer, Contestant
from examples.digits.draw import draw_row
from examples.digits.evaluate import digits_right
from examples.digits.questions import SEE
from examples.digits.scans import load_scans
from outrider import ChainBuilder, Prompt, SpeculativeModel, TreeBuilder
from outrider.checkpoint import Checkpoint
from outrider.generation.completion import Completion
from outrider.interfaces import BoundDraft, DrafterBuilder, LoadOptions, MultimodalProvider, Target, TextCodec
from outrider_adapters.eagle import eagle3_loader
from outrider_adapters.llava import loader
from outrider_adapters.pairs import tiny_llava

__all__ = [
    "DRAFTS",
    "MAX_NEW_TOKENS",
    "Question",
    "Reading",
    "SeeingPair",
    "load_seeing_pair",
    "read_rows",
    "seeing_contestant",
]

SAMPLES = Path(__file__).resolve().parent.parent / "examples" / "digits" / "samples"
MAX_NEW_TOKENS = 80
"""More than any answer has: all end by themselves."""

_ASKED: Sequence[tuple[str, str | None]] = (
    ("What is the sum?", "86420531"),
    ("Tell me a story.", None),
    ("Add them up.", "39517284"),
    ("What is speculative decoding?", None),
    ("What is the sum of the digits?", "60958273"),
    ("Why is that faster?", None),
    ("Please add the digits.", "7046195"),
    ("Who are you?", None),
)
"""Those with long answers, every other one about an image; all in other words, so that ids tell them apart."""

DRAFTS: Mapping[str, Callable[[BoundDraft], DrafterBuilder | None]] = {
    "drafting off": lambda _: None,
    "chain 3": lambda draft: ChainBuilder(draft, 3),
    "chain 5": lambda draft: ChainBuilder(draft, 5),
    "tree 4x5, 15 tokens": lambda draft: TreeBuilder(draft, 4, 5, 15),
}
"""What is drafted, by name."""


@frozen
class Question:
    """``token_ids`` in the form of the chat, placeholders repeated; ``images``: files."""

    token_ids: TokenIds
    images: tuple[bytes, ...]


@frozen(eq=False)
class SeeingPair:
    """The target with its draft bound to it, on one device in one dtype."""

    target: Target
    draft: BoundDraft
    codec: TextCodec
    media: MultimodalProvider

    def questions(self) -> tuple[Question, ...]:
        """The eight that are measured."""
        return tuple(self._question(text, row) for text, row in _ASKED)

    def _question(self, text: str, row: str | None) -> Question:
        images = () if row is None else ((SAMPLES / f"row-{row}.png").read_bytes(),)
        parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
        rendered = self.media.render_chat([{"role": "user", "content": parts}])
        assert rendered is not None
        if not images:
            return Question(tuple(self.codec.encode(rendered)), ())
        return Question(self.media.prepare(rendered, images).token_ids, images)


def load_seeing_pair(device: torch.device, dtype: torch.dtype = torch.float32) -> SeeingPair:
    """The pair that comes with the package, on ``device`` as ``dtype``."""
    directories = tiny_llava()
    options = LoadOptions(device, dtype)
    target = loader().load(Checkpoint(directories.target), options)
    draft = eagle3_loader().load(Checkpoint(directories.drafts[0]), options).bind(target)
    assert target.codec is not None
    assert target.media is not None
    return SeeingPair(target, draft, target.codec, target.media)


def seeing_contestant(name: str, model: SpeculativeModel, questions: Sequence[Question]) -> Contestant:
    """`SpeculativeModel.generate_batch` on ``questions``: files are decoded, images encoded and placed within its time."""
    images = {question.token_ids: question.images for question in questions}

    def generate(prompts: Sequence[TokenIds]) -> Answer:
        asked = [Prompt(prompt, images=images[prompt]) for prompt in prompts]
        completions = model.generate_batch(asked, max_new_tokens=MAX_NEW_TOKENS).completions
        return Answer(
            token_ids=tuple(completion.token_ids for completion in completions),
            num_passes=max(completion.statistics.num_target_passes for completion in completions),
            accept_lengths=tuple(length for completion in completions for length in completion.accept_lengths),
        )

    return Contestant(name, generate, preparations(model))


@frozen
class Reading:
    """How the rows of a test were read. ``texts``: what was said of each."""

    digits: float
    rows: float
    acceptance_length: float
    texts: tuple[str, ...]


def read_rows(model: SpeculativeModel, count: int) -> Reading:
    """What ``model`` sees on ``count`` rows of one digit to eight, of scans that are held out."""
    rows, files = _held_out(count)
    result = model.generate_batch([Prompt(SEE.wordings[0], images=[file]) for file in files])
    right = [digits_right(each.text, digits) for each, digits in zip(result.completions, rows, strict=True)]
    return Reading(
        sum(digits for digits, _ in right) / sum(map(len, rows)),
        sum(whole for _, whole in right) / count,
        result.statistics.mean_acceptance_length,
        tuple(map(_text, result.completions)),
    )


def _text(completion: Completion) -> str:
    return completion.text


@cache
def _held_out(count: int) -> tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]]:
    rng, generator = Random(5), torch.Generator().manual_seed(5)
    scans = load_scans(torch.device("cpu"))[1]
    rows = tuple(tuple(rng.randrange(10) for _ in range(rng.randint(1, 8))) for _ in range(count))
    files: list[bytes] = []
    for digits in rows:
        buffer = BytesIO()
        draw_row(digits, scans, generator).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return rows, tuple(files)
