"""`compare`: whether two runs of a body did the same, whatever data they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from attrs import evolve

from outrider.types.counts import counted
from outrider_backends.tape.faults import CaptureFault, FaultLog, Finding
from outrider_backends.tape.recording import Constant, Operand, RecordedOp, Recording

__all__ = ["compare"]


def compare(first: Recording, second: Recording, what: str) -> None:
    """Refuse a body of which two recordings differ in what a replay runs: an operator, a size, a Python value or an address.

    Views that one made and the other found made are no difference: what is read through them must lie at the same place.
    Both recordings must be alive, so that equal addresses are the same memory.

    Raises:
        CaptureError: with every line that differs.
    """
    log = _compared(_replayed(first), _replayed(second))
    if log.found and [op.func for op in first.ops] == [op.func for op in second.ops]:
        log = _compared(first.ops, second.ops)  # names the line that made another view, not only where it is read
    if not log.found and _breaks(first) != _breaks(second):
        detail = (
            f"{counted(len(first.breaks), 'break')} the first time, {len(second.breaks)} the second, or at other places"
        )
        log.add(Finding(CaptureFault.GROWTH, "the body", "its breaks", detail))
    if not log.found and first.outputs.keys() != second.outputs.keys():
        detail = f"outputs {sorted(first.outputs)} the first time, {sorted(second.outputs)} the second"
        log.add(Finding(CaptureFault.GROWTH, "the body", "its return", detail))
    moved = [name for name, place in first.places.items() if second.places.get(name, place) != place]
    if not log.found and moved:
        detail = f"{', '.join(moved)}: another of its tensors the second time"
        log.add(Finding(CaptureFault.GROWTH, "the body", "its return", detail))
    log.raise_any(what)


def _replayed(recording: Recording) -> list[RecordedOp]:
    return [op for op in recording.ops if op.replayed]


def _breaks(recording: Recording) -> list[int]:
    """How many operators of a replay precede each."""
    replayed = list(accumulate((op.replayed for op in recording.ops), initial=0))
    return [replayed[place] for place, _ in recording.breaks]


def _compared(first: Sequence[RecordedOp], second: Sequence[RecordedOp]) -> FaultLog:
    log = FaultLog()
    for one, two in zip(first, second, strict=False):
        if one.func is not two.func:
            log.add(_finding(CaptureFault.GROWTH, two, f"the first time {one.func} at {one.source}"))
            break  # what follows differs because of it
        for finding in _differences(one, two):
            log.add(finding)
    else:
        if len(first) != len(second):
            longer = max(first, second, key=len)
            extra = longer[min(len(first), len(second))]
            detail = f"{counted(len(first), 'operator')} the first time, {len(second)} the second"
            log.add(_finding(CaptureFault.GROWTH, extra, detail))
    return log


def _differences(one: RecordedOp, two: RecordedOp) -> Iterator[Finding]:
    if len(one.signature) != len(two.signature):
        yield _finding(
            CaptureFault.GROWTH, two, f"{counted(len(one.signature), 'argument')}, then {len(two.signature)}"
        )
        return
    for before, after in zip(one.signature, two.signature, strict=True):
        if before == after:
            continue
        if isinstance(before, Operand) and isinstance(after, Operand):
            yield _tensor_finding(before, after, two)
        else:
            yield _finding(CaptureFault.STALE_VALUE, two, f"{_value(before)}, then {_value(after)}")
    if one.results != two.results:
        sizes = [[list(result.shape) for result in op.results] for op in (one, two)]
        if sizes[0] != sizes[1]:
            yield _finding(CaptureFault.GROWTH, two, f"its results are {sizes[0]}, then {sizes[1]}")


def _tensor_finding(before: Operand, after: Operand, op: RecordedOp) -> Finding:
    if before.shape != after.shape:
        return _finding(CaptureFault.GROWTH, op, f"a tensor of {list(before.shape)}, then {list(after.shape)}")
    if before.origin[0] == after.origin[0] == "number":
        return _finding(CaptureFault.STALE_VALUE, op, f"{before.origin[1]}, then {after.origin[1]}")
    if evolve(before, origin=after.origin) == after:
        return _finding(CaptureFault.ESCAPED, op)
    return _finding(CaptureFault.GROWTH, op, "a tensor lies differently in its memory")


def _value(argument: Constant | Operand) -> str:
    return argument.value if isinstance(argument, Constant) else f"a tensor {list(argument.shape)}"


def _finding(fault: CaptureFault, op: RecordedOp, detail: str = "") -> Finding:
    return Finding(fault, str(op.func), op.source, detail)
