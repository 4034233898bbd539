"""Trains the draft on what the target itself would say, greedily, to the dialogues of the pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as functional
from attrs import frozen
from torch import Tensor

from examples.digits.draft import EagleHead
from examples.digits.model import Reader
from examples.digits.pool import Batch, Pool
from examples.digits.render import VARIED
from examples.digits.scans import Scans
from examples.digits.schedule import Course, Progress, train
from examples.digits.settings import DRAFT_VOCAB_SIZE, SIDE
from examples.digits.target import IMAGES_BY_STEP

__all__ = ["TRAINED_STEPS", "Said", "frequent_ids", "head_loss", "said", "train_draft"]

TRAINED_STEPS = 6
_DECAY = 0.8


@frozen(eq=False)
class Said:
    """A batch as the target reads it: ``embeds [B, T, H]`` with images in their places, ``features``, ``logits``.

    ``own [B, T]`` marks answered tokens that the target says itself: up to the first token, in a row, that differs from its
    greedy choice. So each of them, and what stands before it in its answer, is the target's own generation.
    """

    embeds: Tensor
    features: Tensor
    logits: Tensor
    own: Tensor


def said(reader: Reader, batch: Batch) -> Said:
    """What the target makes of ``batch``."""
    # In full precision, as it will be served: its choices must be its own.
    with torch.autocast(batch.ids.device.type, enabled=False):
        pixels_NCYX = batch.pixels
        patches = None if pixels_NCYX is None else reader.patches(pixels_NCYX)
        embeds_BTH = reader.merged(batch.ids, patches)
        reading = reader.read(embeds_BTH)
    differs_BT = torch.zeros_like(batch.answered)
    differs_BT[:, 1:] = reading.logits[:, :-1].argmax(dim=-1) != batch.ids[:, 1:]
    own_BT = batch.answered & ((differs_BT & batch.answered).cumsum(dim=1) == 0)
    return Said(embeds_BTH, reading.features, reading.logits, own_BT)


def frequent_ids(pools: Sequence[Pool]) -> Tensor:
    """The `DRAFT_VOCAB_SIZE` ids that are answered most often, in rising order, on the pools' device."""
    answered = torch.cat([pool.ids[pool.answered] for pool in pools])
    counts = torch.bincount(answered)
    counts = functional.pad(counts, (0, max(DRAFT_VOCAB_SIZE - len(counts), 0)))
    return counts.topk(DRAFT_VOCAB_SIZE).indices.sort().values


def head_loss(head: EagleHead, spoken: Said, answered_BT: Tensor) -> Tensor:
    """Cross-entropy with the target's distribution over the draft's vocabulary, over `TRAINED_STEPS` steps; a scalar."""
    rows = spoken.own.shape[1] - 1
    teacher_BTD = spoken.logits[..., head.target_ids].float().softmax(dim=-1)
    total = torch.zeros((), device=teacher_BTD.device)
    for step, logits_BRD in enumerate(head(spoken.features, spoken.embeds, TRAINED_STEPS)):
        num = rows - 1 - step
        # Row i foretells token i + 2 + step; the one that is drafted from, i + 1, is an answer's own.
        wanted_BR = spoken.own[:, 2 + step :] & answered_BT[:, 1 : 1 + num]
        teacher_BRD = teacher_BTD[:, 1 + step : 1 + step + num]
        each_BR = -(teacher_BRD * logits_BRD[:, :num].float().log_softmax(dim=-1)).sum(dim=-1)
        total = total + _DECAY**step * (each_BR * wanted_BR).sum() / wanted_BR.sum().clamp(min=1)
    return total


def train_draft(
    reader: Reader,
    pools: Sequence[Pool],
    scans: Scans,
    batch_size: int,
    course: Course,
    generator: torch.Generator,
    say: Callable[[str], None],
) -> tuple[EagleHead, list[float]]:
    """A head trained for ``reader``, which is left as it is, and its losses."""
    device = generator.device
    head = EagleHead(frequent_ids(pools)).to(device)

    def loss_of(progress: Progress) -> Tensor:
        num_images = IMAGES_BY_STEP[progress.step % len(IMAGES_BY_STEP)]
        batch = pools[num_images].sample(batch_size, scans, VARIED, generator, SIDE)
        with torch.no_grad():
            spoken = said(reader, batch)
        return head_loss(head, spoken, batch.answered)

    losses = train([head], course, loss_of, device, say)
    return head.requires_grad_(False), losses
