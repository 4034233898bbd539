"""The whole course: tokenizer, target, draft, evaluation, files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from attrs import asdict

from examples.digits.distil import train_draft
from examples.digits.draft_files import save_draft
from examples.digits.evaluate import acceptance, exact_answers, read_rows, rows_pool
from examples.digits.pool import random_pool
from examples.digits.report import Cost, Report
from examples.digits.scans import load_scans
from examples.digits.schedule import Course
from examples.digits.settings import Plan
from examples.digits.target import train_target
from examples.digits.tokens import save_processor, train_tokenizer

__all__ = ["DRAFT_NAME", "TARGET_NAME", "run"]

TARGET_NAME, DRAFT_NAME = "tiny-llava", "tiny-llava-eagle3"


def run(directory: Path, plan: Plan, device: torch.device, say: Callable[[str], None]) -> Report:
    """Train the pair, write it and ``report.md`` into ``directory``, and say how good it is."""
    torch.manual_seed(plan.seed)  # pyright: ignore[reportUnknownMemberType] - not annotated
    generator = torch.Generator(device).manual_seed(plan.seed)
    rng = Random(plan.seed)
    trained, held_out = load_scans(device)
    tokenizer = train_tokenizer(plan.seed)
    pools = [random_pool(tokenizer, images, plan.pool_size, rng, device) for images in range(3)]
    say(f"{len(pools)} pools of {plan.pool_size} dialogues")

    begin = time.monotonic()
    course = Course(plan.target_steps, plan.target_minutes, plan.target_rate)
    reader, _ = train_target(pools, trained, plan.target_batch, course, generator, say)
    reader.save(directory / TARGET_NAME)
    save_processor(tokenizer, directory / TARGET_NAME)
    target = Cost.of(reader, directory / TARGET_NAME, time.monotonic() - begin)

    begin = time.monotonic()
    course = Course(plan.draft_steps, plan.draft_minutes, plan.draft_rate)
    head, _ = train_draft(reader, pools, trained, plan.draft_batch, course, generator, say)
    save_draft(head, directory / DRAFT_NAME)
    draft = Cost.of(head, directory / DRAFT_NAME, time.monotonic() - begin)

    # Dialogues and rows that no pool holds, of scans that were held out.
    rng = Random(plan.seed + 1)
    rows = rows_pool(tokenizer, plan.held_out_rows, rng, device)
    dialogues = [random_pool(tokenizer, images, plan.held_out_dialogues, rng, device) for images in range(3)]
    accepted = [acceptance(reader, head, pool, held_out, generator) for pool in dialogues]
    report = Report(
        accuracy=read_rows(reader, tokenizer, rows, held_out, generator),
        trained_accuracy=read_rows(reader, tokenizer, rows, trained, generator),
        exact=exact_answers(reader, dialogues, held_out, generator),
        without_image=accepted[0],
        with_image=accepted[1],
        two_images=accepted[2],
        target=target,
        draft=draft,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        settings=[f"{name}: {value}" for name, value in sorted(asdict(plan).items())],
    )
    report.write(directory / "report.md")
    return report
