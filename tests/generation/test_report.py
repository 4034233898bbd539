"""What a runner did, in words."""

from __future__ import annotations

from collections import Counter

from attrs import evolve

from outrider import CaptureSummary, render_capture, render_report
from outrider.generation.report import memory_in_words
from outrider.types import CaptureRecord, DispatchReport, Phase, RefusalReason, Refused, Role, Unserved

MIB = 1 << 20
RECORDS = (
    CaptureRecord(Phase.TARGET_PREFILL, "breakable", "64 tokens", 0.5, 3 * MIB),
    CaptureRecord(Phase.ROUND, "round", "2 requests", 1.25, 2 * MIB),
    CaptureRecord(Phase.ROUND, "round", "1 request", 0.75, MIB // 2),
    CaptureRecord(Phase.MEDIA_ENCODE, "media", "4 items", 0.25, MIB),
)
LOST = Refused(RefusalReason.MEMORY, "round at 4 requests: none left", "capture fewer", "round")
SUMMARY = CaptureSummary("tape", Role.BOTH, 6, RECORDS, (Unserved(Phase.ROUND, LOST, 2),), 0, 3.0)


def report() -> DispatchReport:
    made = DispatchReport("tape")
    made.captured.extend(RECORDS)
    made.ran.update(
        {
            (Phase.ROUND, "eager"): 2,
            (Phase.TARGET_VERIFY, "eager"): 2,
            (Phase.ROUND, "round"): 41,
            (Phase.DRAFT_EXTEND, "eager"): 3,
            (Phase.DRAFT_EXTEND, "breakable"): 4,
            (Phase.TARGET_PREFILL, "breakable"): 3,
            (Phase.TARGET_PREFILL, "elsewhere"): 1,
            (Phase.MEDIA_ENCODE, "eager"): 1,
            (Phase.MEDIA_ENCODE, "media"): 2,
        }
    )
    prompt = Refused(RefusalReason.NOT_UNIFORM, "12 tokens", "nothing need be done", "phase")
    for _ in range(3):
        made.count_refusal(Phase.TARGET_PREFILL, prompt)
    for by in ("phase", "breakable"):
        made.count_refusal(Phase.DRAFT_EXTEND, Refused(RefusalReason.BODY, "2 problems\n  - a\n  - b", "mend it", by))
    made.count_refusal(Phase.MEDIA_ENCODE, Refused(RefusalReason.MEMORY, "8 items", "capture fewer", "media"))
    made.count_refusal(Phase.DRAFT_STEP, Refused(RefusalReason.ROLE, "a worker for prefill only", "build another"))
    return made


def test_every_phase_refusal_and_graph_is_told() -> None:
    assert render_report(report()).splitlines() == [
        "runner: tape",
        "media encode: media 2, eager 1",
        "target prefill: breakable 3, elsewhere 1",
        "round: round 41, eager 2 (the first round of a shape is its warm-up)",
        "target verify: eager 2 (inside rounds that warmed up)",
        "draft extend: breakable 4, eager 3",
        "media encode, no media graph: 1 time: out of memory during capture (8 items); capture fewer",
        "target prefill, no phase graph: 3 times: queries per request differ, or belong to a prompt (12 tokens); "
        "nothing need be done",
        "draft extend, no phase graph: 2 times by all kinds together: the body cannot be captured (2 problems",
        "      - a",
        "      - b); mend it",
        "draft extend, no breakable graph: 2 times by all kinds together: the body cannot be captured (2 problems",
        "      - a",
        "      - b); mend it",
        "draft step, no graph: 1 time: the worker's role has no such graphs (a worker for prefill only); build another",
        "breakable graphs: 1 in 0.50 s, 3.0 MiB",
        "round graphs: 2 in 2.00 s, 2.5 MiB",
        "media graphs: 1 in 0.25 s, 1.0 MiB",
    ]


def test_a_runner_that_has_done_nothing() -> None:
    assert render_report(DispatchReport("eager")) == "runner: eager\n"


def test_counts_of_nothing_are_no_counts() -> None:
    made = DispatchReport("eager", ran=Counter({(Phase.ROUND, "eager"): 0, (Phase.TARGET_DECODE, "eager"): 2}))
    assert render_report(made) == "runner: eager\ntarget decode: eager 2\n"


def test_a_capture_is_told_with_what_it_left_out_and_what_it_could_not() -> None:
    assert render_capture(SUMMARY).splitlines() == [
        "breakable graphs: 1 in 0.50 s, 3.0 MiB",
        "round graphs: 2 in 2.00 s, 2.5 MiB",
        "media graphs: 1 in 0.25 s, 1.0 MiB",
        "graphs in all: 4 in 3.00 s, 6.5 MiB, at 6 sizes",
        "round, no round graph: at 2 sizes: out of memory during capture (round at 4 requests: none left); capture fewer",
    ]
    decode = evolve(SUMMARY, role=Role.DECODE, left_out=17, unserved=())
    assert render_capture(decode).splitlines()[-1] == "left out by role decode: 17 sizes"
    assert render_report(DispatchReport("tape"), decode).splitlines()[-1] == "left out by role decode: 17 sizes"


def test_a_runner_without_graphs_says_so() -> None:
    nothing = CaptureSummary("eager", Role.BOTH, 0, (), (), 0, 0.0)
    assert render_capture(nothing) == "graphs in all: 0: the eager runner has no graphs\n"


def test_memory_has_a_unit_that_suits_it() -> None:
    assert [memory_in_words(n) for n in (0, 100_000, 1 << 30)] == ["0.0 MiB", "0.1 MiB", "1.00 GiB"]
