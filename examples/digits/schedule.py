"""Training loops: a learning rate that ends at zero when the steps or the minutes do, and one optimizer step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from attrs import frozen
from torch import Tensor, nn

__all__ = ["Course", "Progress", "train"]

_WARMUP = 0.03
_CLIP = 1.0
_REPORTS = 20


@frozen
class Course:
    """How long a loop runs: ``steps``, or ``minutes`` where the machine is too slow for them."""

    steps: int
    minutes: float
    rate: float


@frozen
class Progress:
    """One step of a loop: its number, and how much of the course is behind it, from 0 to 1."""

    step: int
    done: float


def train(
    modules: Iterable[nn.Module],
    course: Course,
    loss_of: Callable[[Progress], Tensor],
    device: torch.device,
    say: Callable[[str], None],
) -> list[float]:
    """Minimise ``loss_of`` by AdamW over the parameters of ``modules``; returns the losses that were reported.

    Forward passes run in bfloat16 on a GPU, weights and optimizer stay in float32.
    """
    matrices = [p for module in modules for p in module.parameters() if p.requires_grad]
    decayed = [p for p in matrices if p.ndim > 1]
    others = [p for p in matrices if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=device.type == "cuda")
    reported: list[float] = []
    for progress in _steps(course):
        rate = course.rate * _shape(progress.done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(progress)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType] - torch's own
        nn.utils.clip_grad_norm_(matrices, _CLIP)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType] - its closure is left bare
        if progress.step % max(course.steps // _REPORTS, 1) == 0:
            reported.append(float(loss.detach()))
            say(f"step {progress.step:6d}  {progress.done:4.0%}  loss {reported[-1]:.4f}")
    return reported


def _steps(course: Course) -> Iterator[Progress]:
    begin = time.monotonic()
    for step in range(course.steps):
        done = max(step / course.steps, (time.monotonic() - begin) / (60.0 * course.minutes))
        if done >= 1.0:
            return
        yield Progress(step, done)


def _shape(done: float) -> float:
    """Rises over the first `_WARMUP`, then falls to zero by half a cosine."""
    if done < _WARMUP:
        return (done + 1e-3) / (_WARMUP + 1e-3)
    return 0.5 + 0.5 * math.cos(math.pi * (done - _WARMUP) / (1.0 - _WARMUP))
