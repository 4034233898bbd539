"""Sizes of the pair, and how long it is trained."""

from __future__ import annotations

from attrs import evolve, frozen

__all__ = [
    "CONTEXT",
    "DRAFT_VOCAB_SIZE",
    "HIDDEN",
    "IMAGE_TOKENS",
    "PATCH",
    "SIDE",
    "TAPS",
    "VOCAB_SIZE",
    "Plan",
    "full",
    "quick",
]

SIDE, PATCH = 64, 8
IMAGE_TOKENS = (SIDE // PATCH) ** 2
VOCAB_SIZE, DRAFT_VOCAB_SIZE = 640, 256
HIDDEN = 128
CONTEXT = 1024
TAPS = (1, 2, 3)
"""Boundaries of the decoder whose hidden states the draft is fed."""


@frozen
class Plan:
    """How much is trained, and on what; the minutes only end what the steps would not end in time."""

    target_steps: int
    target_batch: int
    target_rate: float
    draft_steps: int
    draft_batch: int
    draft_rate: float
    target_minutes: float
    draft_minutes: float
    pool_size: int
    """Dialogues for each number of images, tokenized beforehand; their images are drawn anew each time."""
    held_out_rows: int
    held_out_dialogues: int
    seed: int = 0


# What an H200 does with some room; a slower device is stopped by the minutes.
_TARGET_STEPS_A_MINUTE = 4000
_DRAFT_STEPS_A_MINUTE = 3000


def full(target_minutes: float, draft_minutes: float) -> Plan:
    """A few minutes of one GPU."""
    return Plan(
        target_steps=round(_TARGET_STEPS_A_MINUTE * target_minutes),
        target_batch=512,
        target_rate=2.5e-3,
        draft_steps=round(_DRAFT_STEPS_A_MINUTE * draft_minutes),
        draft_batch=128,
        draft_rate=2e-3,
        target_minutes=target_minutes,
        draft_minutes=draft_minutes,
        pool_size=40_000,
        held_out_rows=1024,
        held_out_dialogues=512,
    )


def quick(target_minutes: float, draft_minutes: float) -> Plan:
    """Under a minute of a CPU: everything runs, nothing is learned well."""
    return evolve(
        full(target_minutes, draft_minutes),
        target_steps=12,
        target_batch=8,
        draft_steps=8,
        draft_batch=4,
        pool_size=200,
        held_out_rows=4,
        held_out_dialogues=4,
    )
