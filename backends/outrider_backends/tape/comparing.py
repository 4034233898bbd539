"""`compare`: whether two runs of a body did the same, whatever data they were given."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from outrider_backends.tape.faults import CaptureFault, FaultLog, Finding
from outrider_backends.tape.recording import Constant, Operand, RecordedOp, Recording

__all__ = ["compare"]


def compare(first: Recording, second: Recording, what: str) -> None:
    """Refuse a body of which two recordings differ in an operator, a size, a Python value or an address.

    Both recordings must be alive, so that equal addresses are the same memory.

    Raises:
        CaptureError: with every line that differs.
    """
    log = FaultLog()
    for one, two in zip(first.ops, second.ops, strict=False):
        if one.func is not two.func:
            log.add(_finding(CaptureFault.GROWTH, two, f"the first time {one.func} at {one.source}"))
            break  # what follows differs because of it
        for finding in _differences(one, two):
            log.add(finding)
    else:
        if len(first.ops) != len(second.ops):
            longer = max(first.ops, second.ops, key=len)
            extra = longer[min(len(first.ops), len(second.ops))]
            detail = f"{len(first.ops)} operators the first time, {len(second.ops)} the second"
            log.add(_finding(CaptureFault.GROWTH, extra, detail))
    if not log.found and [place for place, _ in first.breaks] != [place for place, _ in second.breaks]:
        detail = f"{len(first.breaks)} breaks the first time, {len(second.breaks)} the second, or at other places"
        log.add(Finding(CaptureFault.GROWTH, "the body", "its breaks", detail))
    if not log.found and first.outputs.keys() != second.outputs.keys():
        detail = f"outputs {sorted(first.outputs)} the first time, {sorted(second.outputs)} the second"
        log.add(Finding(CaptureFault.GROWTH, "the body", "its return", detail))
    log.raise_any(what)


def _differences(one: RecordedOp, two: RecordedOp) -> Iterator[Finding]:
    if len(one.signature) != len(two.signature):
        yield _finding(CaptureFault.GROWTH, two, f"{len(one.signature)} arguments, then {len(two.signature)}")
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
