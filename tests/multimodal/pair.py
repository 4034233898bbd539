"""The trained pair that reads digits, pictures of held-out ones, and what is right to say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from attrs import frozen

from examples.digits.questions import PAIR_TASKS, SEE, TASKS, PairTask, Task, answer
from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.generation.settings import RequestSettings
from outrider.interfaces import BoundDraft, DrafterBuilder, GraphRunner, LoadOptions, Target, Verifier
from outrider.loop.build import EngineOptions
from outrider_backends.eager import EagerRunner

__all__ = [
    "BOTH",
    "CPU",
    "DRAFTS",
    "IMAGES",
    "IMAGE_TOKENS",
    "MIXED",
    "SUM",
    "SeeingPair",
    "about",
    "image",
    "load_seeing_pair",
    "model_of",
    "plain_texts",
    "right_answer",
    "seeing_pair",
    "texts_of",
]

CPU = torch.device("cpu")
IMAGE_TOKENS = 64
IMAGES: Mapping[str, Path] = {
    path.stem.removeprefix("row-"): path for path in sorted((Path(__file__).parent / "images").glob("row-*.png"))
}
"""Files by the digits that they show; made by ``python -m examples.digits.draw``, from scans that are held out."""


def _task(wording: str, tasks: Sequence[Task]) -> Task:
    return next(task for task in tasks if wording in task.wordings)


SUM = _task("What is the sum?", TASKS)
BOTH: PairTask = PAIR_TASKS[0]
DIGIT = "What is a digit?"

DRAFTS: Mapping[str, Callable[[BoundDraft], DrafterBuilder | None]] = {
    "off": lambda _: None,
    "chain": lambda draft: ChainBuilder(draft, 5),
    "tree": lambda draft: TreeBuilder(draft, 4, 5, 15),
    "static tree": lambda draft: StaticTreeBuilder(draft, (0, 0, 1, 1, 2, 3)),
}


@frozen(eq=False)
class SeeingPair:
    """A target that reads images, and its bound draft."""

    target: Target
    draft: BoundDraft


def load_seeing_pair(device: torch.device) -> SeeingPair:
    """The pair as its files have it now, in float32; nothing is shared with another load."""
    options = LoadOptions(device, torch.float32)
    files = registry.pair("tiny-llava")
    target = registry.load_target(Checkpoint(files.target), options)
    return SeeingPair(target, registry.load_draft(Checkpoint(files.drafts[0]), options).bind(target))


@cache
def seeing_pair() -> SeeingPair:
    """The pair on the CPU; its parts are shared by all tests of a process and hold no state."""
    return load_seeing_pair(CPU)


def image(digits: str) -> bytes:
    """The file that shows ``digits``."""
    return IMAGES[digits].read_bytes()


def about(*rows: str, asking: str = SEE.wordings[0], settings: RequestSettings | None = None) -> Prompt:
    """A question about the pictures of ``rows``, in the form of the chat template."""
    return Prompt(asking, settings, images=[image(row) for row in rows])


def right_answer(task: Task | PairTask, *rows: str) -> str:
    """What is to be said, computed from the digits alone."""
    return answer(task, [[int(digit) for digit in row] for row in rows])


MIXED: Sequence[Prompt] = (
    about("73142"),
    Prompt("<|begin|>USER: What do you see?\nASSISTANT:\n"),
    about("9371", asking=SUM.wordings[0]),
    Prompt(f"<|begin|>USER: {DIGIT}\nASSISTANT:\n"),
    about("05", "118", asking=BOTH.wordings[0]),
    Prompt("<|begin|>USER: Can you read letters?\nASSISTANT:\n"),
    about("2058", asking="Read them backwards."),
    Prompt("<|begin|>USER: Write 40718 in words.\nASSISTANT:\n"),
)
"""Eight requests, every other one with images; prompts and answers of several lengths."""


def model_of(
    pair: SeeingPair,
    draft: str = "chain",
    runner: Callable[[], GraphRunner] = EagerRunner,
    verifier: Verifier | None = None,
    *,
    attention: str = "sdpa",
    batch: int = 8,
    budget: int = 8192,
) -> SpeculativeModel:
    """A model of ``pair`` that drafts as one of `DRAFTS` says. ``budget``: tokens of prompts in a pass."""
    return SpeculativeModel(
        pair.target,
        DRAFTS[draft](pair.draft),
        attention=registry.attention(attention),
        runner=runner,
        verifier=verifier,
        options=EngineOptions(max_batch_size=batch, max_length=512, max_prefill_tokens=budget),
    )


def texts_of(model: SpeculativeModel, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Token ids that ``model`` gives, all prompts submitted at once; every one must end by itself."""
    completions = model.generate_batch(prompts).completions
    assert {each.finish_reason for each in completions} <= {"eos"}
    return [each.token_ids for each in completions]


@cache
def plain_texts(prompts: tuple[Prompt, ...]) -> list[tuple[int, ...]]:
    """What the target alone says to each prompt, on an engine of its own for each: nothing can be left over."""
    return [texts_of(model_of(seeing_pair(), "off", batch=1), [prompt])[0] for prompt in prompts]
