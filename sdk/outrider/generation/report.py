"""What a runner did, in words: how each phase ran, what was refused and why, and what was captured at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from outrider.types import (
    CaptureSummary,
    CaptureTotals,
    DispatchReport,
    Phase,
    RefusalReason,
    Refused,
    Role,
    totals_by_kind,
)
from outrider.types.counts import counted

__all__ = ["ReportRow", "capture_rows", "memory_in_words", "render_capture", "render_report", "report_rows"]

_EAGER = "eager"
_ORDER = ("media", "round", "phase", "breakable")
_PHASES = (
    Phase.MEDIA_ENCODE,
    Phase.TARGET_PREFILL,
    Phase.ROUND,
    Phase.TARGET_VERIFY,
    Phase.TARGET_DECODE,
    Phase.DRAFT_EXTEND,
    Phase.DRAFT_STEP,
)
"""As the loop comes to them."""


@frozen
class ReportRow:
    """One line: what it is about, and what there is to say."""

    label: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}: {self.value}".replace("\n", "\n    ")


def render_report(report: DispatchReport, summary: CaptureSummary | None = None) -> str:
    """`report_rows` as text, a line each."""
    return _text(report_rows(report, summary))


def render_capture(summary: CaptureSummary) -> str:
    """`capture_rows` as text, a line each."""
    return _text(capture_rows(summary))


def report_rows(report: DispatchReport, summary: CaptureSummary | None = None) -> tuple[ReportRow, ...]:
    """What ran where and how often, every kind of refusal with its newest case, and the graphs that exist.

    ``summary``: of `Engine.capture`, where it was called; tells what the worker's role left out.
    """
    rows = [ReportRow("runner", report.runner)]
    rows += [ReportRow(phase.value, _ran(report, phase)) for phase in _PHASES if _counts(report, phase)]
    rows += [
        ReportRow(_without(phase, refused.by), _refused(report, phase, refused))
        for phase, refused in sorted(((phase, each) for (phase, *_), each in report.explained.items()), key=_place)
    ]
    rows += _captured(totals_by_kind(report.captured))
    if summary is not None:
        rows += _left_out(summary)
    return tuple(rows)


def capture_rows(summary: CaptureSummary) -> tuple[ReportRow, ...]:
    """What capturing before the first request made, at what cost, what it could not, and what it left out."""
    if not summary.sizes and not summary.left_out:
        return (ReportRow("graphs in all", f"0: the {summary.runner} runner has no graphs"),)
    rows = _captured(summary.by_kind)
    count = len(summary.captured)
    everything = CaptureTotals(count, summary.seconds, summary.nbytes)
    rows.append(ReportRow("graphs in all", f"{_cost(everything)}, at {counted(summary.sizes, 'size')}"))
    rows += [
        ReportRow(_without(each.phase, each.refused.by), f"at {counted(each.sizes, 'size')}: {_why(each.refused)}")
        for each in sorted(summary.unserved, key=lambda each: _place((each.phase, each.refused)))
    ]
    rows += _left_out(summary)
    return tuple(rows)


def memory_in_words(nbytes: int) -> str:
    """``nbytes`` in a unit that suits them."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _text(rows: Iterable[ReportRow]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _counts(report: DispatchReport, phase: Phase) -> Mapping[str, int]:
    """How often ``phase`` ran where, the best place first."""
    found = {where: count for (what, where), count in report.ran.items() if what is phase and count}
    others = [where for where in found if where not in (*_ORDER, _EAGER)]
    return {where: found[where] for where in (*_ORDER, *others, _EAGER) if where in found}


def _ran(report: DispatchReport, phase: Phase) -> str:
    counts = _counts(report, phase)
    text = ", ".join(f"{where} {count}" for where, count in counts.items())
    if _EAGER not in counts:
        return text
    if phase is Phase.ROUND:
        if (phase, "round", RefusalReason.DEVICE) in report.explained:
            return text  # nothing was to be captured
        return f"{text} (the first round of a shape is its warm-up)"
    inside = report.ran[Phase.ROUND, _EAGER] and not any(what is phase for what, _, _ in report.explained)
    return f"{text} (inside rounds that warmed up)" if inside else text


def _place(row: tuple[Phase, Refused]) -> tuple[int, int]:
    """As the loop comes to the phases, and the runner to its kinds of graphs."""
    phase, refused = row
    return _PHASES.index(phase), _ORDER.index(refused.by) if refused.by in _ORDER else len(_ORDER)


def _refused(report: DispatchReport, phase: Phase, refused: Refused) -> str:
    reason = refused.reason
    kinds = sum(what is phase and why is reason for what, _, why in report.explained)
    times = counted(report.refused[phase, reason], "time")
    # The count is of all kinds of graphs together that gave this reason.
    return f"{times}{'' if kinds == 1 else ' by all kinds together'}: {_why(refused)}"


def _why(refused: Refused) -> str:
    return f"{refused.reason.value} ({refused.numbers}); {refused.remedy}"


def _captured(totals: Mapping[str, CaptureTotals]) -> list[ReportRow]:
    return [ReportRow(f"{kind} graphs", _cost(each)) for kind, each in totals.items()]


def _cost(totals: CaptureTotals) -> str:
    return f"{totals.graphs} in {totals.seconds:.2f} s, {memory_in_words(totals.nbytes)}"


def _left_out(summary: CaptureSummary) -> list[ReportRow]:
    if summary.role is Role.BOTH:
        return []
    return [ReportRow(f"left out by role {summary.role.value}", counted(summary.left_out, "size"))]


def _without(phase: Phase, by: str) -> str:
    return f"{phase.value}, no {by} graph" if by else f"{phase.value}, no graph"
