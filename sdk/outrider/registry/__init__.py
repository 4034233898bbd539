"""Where implementations of the seams are found, and how the one for a checkpoint is picked."""

from __future__ import annotations

from outrider.registry.loading import describe, load_draft, load_target, target_refusal
from outrider.registry.parts import (
    ATTENTION,
    CONSTRAINTS,
    DRAFTERS,
    DRAFTS,
    INSTALLED,
    PAIRS,
    RUNNERS,
    TARGETS,
    VERIFIERS,
    Group,
    Registry,
    attention,
    constraints,
    draft_loaders,
    names,
    pair,
    register,
    runner,
    target_loaders,
    verifier,
)

__all__ = [
    "ATTENTION",
    "CONSTRAINTS",
    "DRAFTERS",
    "DRAFTS",
    "INSTALLED",
    "PAIRS",
    "RUNNERS",
    "TARGETS",
    "VERIFIERS",
    "Group",
    "Registry",
    "attention",
    "constraints",
    "describe",
    "draft_loaders",
    "load_draft",
    "load_target",
    "names",
    "pair",
    "register",
    "runner",
    "target_loaders",
    "target_refusal",
    "verifier",
]
