"""What capturing costs is told by kind, and what a role saves is the other role's."""

from __future__ import annotations

from collections import Counter

import torch

from benchmarks._capture import Capturing, capture_goals, capture_roles, capture_table, saved
from outrider import ChainBuilder, EngineOptions
from outrider.types import CaptureRecord, CaptureSummary, Phase, RefusalReason, Refused, Role, Unserved
from outrider_adapters.pairs import tiny
from tests.support.pair import trained_pair

SMALL = EngineOptions(max_batch_size=2, max_length=24, max_prefill_tokens=6)


def kinds(one: Capturing) -> Counter[tuple[Phase, str, str]]:
    return Counter((record.phase, record.by, record.size) for record in one.summary.captured)


def test_the_roles_share_the_graphs_of_both_between_them() -> None:
    assert tiny().drafts
    pair = trained_pair()
    both, prompts, rounds = capture_roles("the pair", pair.target, ChainBuilder(pair.eagle3, 1), "sdpa", SMALL)
    assert [one.summary.role for one in (both, prompts, rounds)] == [Role.BOTH, Role.PREFILL, Role.DECODE]
    assert kinds(both) == kinds(prompts) + kinds(rounds)
    assert {record.phase for record in rounds.summary.captured} == {Phase.ROUND}
    assert prompts.summary.left_out > 0
    assert rounds.summary.left_out > 0
    table = capture_table([both, prompts, rounds])
    graphs = [int(row[3]) for row in table.rows]
    totals = [place for place, row in enumerate(table.rows) if row[2] == "**all**"]
    first, last = 0, totals[0]
    assert sum(graphs[first:last]) == graphs[last] == sum(graphs[place] for place in totals[1:])
    assert len(saved([both, prompts, rounds])) == 2


def summary(role: Role, *sizes: int, seconds: float = 1.0, unserved: tuple[Unserved, ...] = ()) -> CaptureSummary:
    records = tuple(CaptureRecord(Phase.ROUND, "round", f"{size}", 0.5, size) for size in sizes)
    return CaptureSummary("whole round", role, 9, records, unserved, 4, seconds)


def test_savings_goals_and_what_is_not_captured_are_said() -> None:
    refused = Unserved(Phase.ROUND, Refused(RefusalReason.TOO_LARGE, "9 requests", "give more"), 2)
    both = Capturing("8B", summary(Role.BOTH, 1 << 30, 1 << 31, seconds=31.0, unserved=(refused,)), 0)
    decode = Capturing("8B", summary(Role.DECODE, 1 << 30), 0)
    unserved, less = saved([both, decode])
    assert unserved == f"- 8B, both: 2 sizes run round eagerly: {RefusalReason.TOO_LARGE.value} (9 requests)."
    assert less.endswith("leaves 4 sizes out and saves 2048 of 3072 MiB.")
    seconds, size = capture_goals([both, decode])
    assert (seconds.found, seconds.reached) == (31.0, False)
    assert (size.found, size.reached) == (3 * 2**30 / 1e9, False)
    assert [goal.reached for goal in capture_goals([Capturing("", summary(Role.BOTH, 10), 0)])] == [True, True]
    assert torch.cuda.is_available() or both.card_bytes == 0
