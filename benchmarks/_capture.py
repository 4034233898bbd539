"""What capturing every default size costs before the first request, by kind of graph and by the worker's role."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
from attrs import frozen

from benchmarks._backends import WHOLE_ROUND, attention, runner
from benchmarks._goal import Goal
from benchmarks._report import Table
from outrider import EngineOptions, build_engine
from outrider.interfaces import DrafterBuilder, Target
from outrider.types import CaptureSummary, Role

__all__ = ["Capturing", "capture_goals", "capture_roles", "capture_table", "saved"]

_MOST_SECONDS = 30.0
_MOST_GB = 2.0


@frozen(eq=False)
class Capturing:
    """What `Engine.capture` said, and ``card_bytes`` that the card had less afterwards, buffers and workspaces included."""

    name: str
    summary: CaptureSummary
    card_bytes: int


def capture_roles(
    name: str,
    target: Target,
    builder: DrafterBuilder | None,
    backend: str,
    options: EngineOptions | None = None,
    roles: Sequence[Role] = tuple(Role),
) -> list[Capturing]:
    """Capture all default sizes on a new engine for each of ``roles``, one after the other, each with a pool of its own."""
    found: list[Capturing] = []
    for role in roles:
        engine = build_engine(
            target, builder, attention=attention(backend), runner=runner(WHOLE_ROUND, role), options=options
        )
        before = _free_bytes(target.stack.spec.device)
        summary = engine.capture()
        found.append(Capturing(name, summary, before - _free_bytes(target.stack.spec.device)))
        engine.close()
        del engine
    return found


def capture_table(capturings: Sequence[Capturing]) -> Table:
    """For each role what each kind of graph of each phase took, and all of them together."""
    rows: list[tuple[str, ...]] = []
    for one in capturings:
        head = (one.name, one.summary.role.value)
        kinds = dict.fromkeys((record.phase, record.by) for record in one.summary.captured)
        for phase, by in kinds:
            records = [record for record in one.summary.captured if (record.phase, record.by) == (phase, by)]
            seconds, size = sum(record.seconds for record in records), sum(record.nbytes for record in records)
            what = by if phase.value == by else f"{phase.value}, {by}"
            rows.append((*head, what, str(len(records)), f"{seconds:.1f}", f"{size / 2**20:.0f}", ""))
        summary = one.summary
        totals = (str(len(summary.captured)), f"{summary.seconds:.1f}", f"{summary.nbytes / 2**20:.0f}")
        rows.append((*head, "**all**", *totals, f"{one.card_bytes / 2**20:.0f}"))
    return Table(("", "role", "graphs of", "graphs", "s", "MiB", "card MiB"), tuple(rows), frozenset({0, 1, 2}))


def saved(capturings: Sequence[Capturing]) -> list[str]:
    """How much less memory a worker of one role takes than one of both, and what could not be captured; a line each."""
    lines: list[str] = []
    both = {one.name: one.summary.nbytes for one in capturings if one.summary.role is Role.BOTH}
    for one in capturings:
        role = one.summary.role
        if role is not Role.BOTH and one.name in both:
            less = both[one.name] - one.summary.nbytes
            lines.append(
                f"- {one.name}: a worker for {role.value} only leaves {one.summary.left_out} sizes out and saves "
                f"{less / 2**20:.0f} of {both[one.name] / 2**20:.0f} MiB."
            )
        lines += [
            f"- {one.name}, {role.value}: {each.sizes} sizes run {each.phase.value} eagerly: {each.refused.reason.value} "
            f"({each.refused.numbers})."
            for each in one.summary.unserved
        ]
    return lines


def capture_goals(capturings: Sequence[Capturing]) -> list[Goal]:
    """What all default sizes may take together."""
    goals: list[Goal] = []
    for one in capturings:
        if one.summary.role is Role.BOTH:
            what = f"{one.name}, all default sizes"
            goals.append(Goal(f"{what}, seconds", _MOST_SECONDS, one.summary.seconds, at_most=True))
            goals.append(Goal(f"{what}, GB", _MOST_GB, one.summary.nbytes / 1e9, at_most=True))
    return goals


def _free_bytes(device: torch.device) -> int:
    """Free memory of a card with nothing idle in PyTorch's hands; 0 elsewhere."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
