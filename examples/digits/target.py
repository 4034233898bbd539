"""Trains the target: answers to questions about images of digits, with hints for the vision tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

from examples.digits.hints import Hints
from examples.digits.model import Reader
from examples.digits.pool import Pool
from examples.digits.render import VARIED
from examples.digits.scans import Scans
from examples.digits.schedule import Course, Progress, train
from examples.digits.settings import SIDE

__all__ = ["IMAGES_BY_STEP", "SIDES", "answer_loss", "train_target"]

IMAGES_BY_STEP = (1, 1, 2, 1, 1, 1, 0, 1, 2, 1)
"""Images in each dialogue of a step, again and again."""
SIDES = (SIDE, SIDE, 96, SIDE, 48, SIDE, 80)
"""Sizes at which images are drawn before they are brought to the model's."""
_HINT_WEIGHT, _LEAST_HINT_WEIGHT = 0.6, 0.1


def answer_loss(logits_BTV: Tensor, ids_BT: Tensor, answered_BT: Tensor) -> Tensor:
    """Cross-entropy of the tokens that are answered, by the logits before each; a scalar."""
    each_BT = functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none"
    ).view_as(ids_BT[:, 1:])
    asked_BT = answered_BT[:, 1:]
    return (each_BT * asked_BT).sum() / asked_BT.sum().clamp(min=1)


def train_target(
    pools: Sequence[Pool],
    scans: Scans,
    batch_size: int,
    course: Course,
    generator: torch.Generator,
    say: Callable[[str], None],
) -> tuple[Reader, list[float]]:
    """A trained target, and its losses; ``pools`` are the dialogues with no, one and two images."""
    device = generator.device
    reader, hints = Reader().to(device), Hints().to(device)

    def loss_of(progress: Progress) -> Tensor:
        num_images = IMAGES_BY_STEP[progress.step % len(IMAGES_BY_STEP)]
        side = SIDES[progress.step % len(SIDES)]
        size = max(batch_size // max(num_images, 1), 1)
        batch = pools[num_images].sample(size, scans, VARIED, generator, side)
        patches: Tensor | None = None
        hint_loss = torch.zeros((), device=device)
        pixels_NCYX = batch.pixels
        if pixels_NCYX is not None and batch.drawing is not None:
            patches = reader.patches(pixels_NCYX)
            hint_loss = hints(patches, batch.digits, batch.drawing.layout)
        logits_BTV = reader(reader.merged(batch.ids, patches))
        loss = answer_loss(logits_BTV, batch.ids, batch.answered)
        return loss + max(_HINT_WEIGHT * (1.0 - progress.done), _LEAST_HINT_WEIGHT) * hint_loss

    losses = train([reader, hints], course, loss_of, device, say)
    return reader.requires_grad_(False), losses
