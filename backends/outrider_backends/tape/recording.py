"""`record`: runs a body once while writing down every operator with its actual tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import field, frozen
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.interfaces import Work
from outrider_backends.tape.faults import CaptureFault, FaultLog, Finding, body_line
from outrider_backends.tape.operators import (
    FROM_PYTHON,
    LIFTS,
    TO_THE_HOST,
    UNWRITTEN,
    Operator,
    Written,
    draws,
    host_fault,
    leaves,
    memory_of,
    random_state,
    takes_generator,
    written_by,
)
from outrider_backends.tape.undo import UndoLog

__all__ = ["Constant", "Operand", "RecordedOp", "Recording", "record"]


@frozen
class Constant:
    """An argument that is no tensor: its type as well, since 1 == 1.0 == True; ``repr`` since NaN differs from itself."""

    kind: type
    value: str


@frozen
class Operand:
    """A tensor argument: where its memory comes from, and how it lies there.

    ``origin``: an input buffer by name, the n-th memory made by the recording, a number from Python by value, or memory
    from elsewhere by address.
    """

    origin: tuple[str, object]
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@frozen(eq=False)
class RecordedOp:
    """One operator as it was called.

    ``signature``: its arguments, comparable between captures. ``made``: tensors whose memory it allocated, each with its
    place among the flattened results. ``replayed``: whether it does anything that has to be done again.
    """

    func: Operator
    args: tuple[object, ...]
    kwargs: dict[str, object]
    signature: tuple[Constant | Operand, ...]
    results: tuple[Operand, ...]
    made: tuple[tuple[int, Tensor], ...]
    replayed: bool
    source: str


@frozen(eq=False)
class Recording:
    """Everything one run of a body did."""

    outputs: dict[str, Tensor]
    places: dict[str, Operand]
    """Where each output lies."""
    ops: list[RecordedOp]
    breaks: list[tuple[int, Callable[[], None]]]
    """Eager pieces, each with how many operators precede it."""
    keeps: list[object] = field(repr=False)
    """Every tensor that was seen: what is kept alive cannot be given another's address."""


def record(work: Work, inputs: Mapping[str, Tensor], device: torch.device, what: str) -> Recording:
    """What one run of ``work`` does, which reads ``inputs``. Must be called in inference mode.

    It is run for real, and what it wrote to memory that was there before is put back, so a recording changes nothing, as
    the capture of a graph does. Eager pieces between segments are not run. Outputs that the work did not make itself (an input
    handed through, memory from elsewhere) are copied, so that all outputs are the recording's own.

    Raises:
        CaptureError: operators that a graph cannot hold; all of them at once, with their lines.
    """
    log = FaultLog()
    operators = _Operators()  # type: ignore[no-untyped-call]  # torch leaves TorchDispatchMode.__init__ unannotated
    operators.begin(inputs, device, log)
    functions = _Functions()
    functions.log = log
    before = random_state(device)
    breaks: list[tuple[int, Callable[[], None]]] = []
    try:
        with functions, operators:
            made = work(lambda eager: breaks.append((len(operators.ops), eager)))
            outputs = {name: tensor if operators.made_here(tensor) else tensor.clone() for name, tensor in made.items()}
    except Exception as error:
        log.raise_any(what, error)
        raise
    finally:
        operators.undo.put_back()
    drew = not torch.equal(before, random_state(device))
    if drew and all(finding.fault is not CaptureFault.RANDOM for finding in log.found):
        log.add(Finding(CaptureFault.RANDOM, "an operator that does not say so", "somewhere in the body"))
    log.raise_any(what)
    places = {name: operators.operand(tensor) for name, tensor in outputs.items()}
    return Recording(outputs, places, operators.ops, breaks, operators.keeps)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ unannotated
    ops: list[RecordedOp]
    keeps: list[object]
    undo: UndoLog

    def begin(self, inputs: Mapping[str, Tensor], device: torch.device, log: FaultLog) -> None:
        self.ops, self.keeps, self._log, self._device = [], [], log, device
        self._origins: dict[int, tuple[str, object]] = {
            memory_of(tensor): ("input", name) for name, tensor in inputs.items() if tensor.numel()
        }
        self._num_made = 0
        self.undo = UndoLog()

    def made_here(self, tensor: Tensor) -> bool:
        return self._origin(tensor)[0] == "made"

    def __torch_dispatch__(
        self,
        func: Operator,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = {} if kwargs is None else kwargs
        given = tuple(leaves((args, named)))
        written = written_by(func, args, named)
        source = body_line()
        self._look(func, args, named, given, written, source)
        if any(self._origin(tensor)[0] == "outside" for tensor in written.tensors):
            self.undo.save(func, args, named)
        before = random_state(self._device) if draws(func, given) else None
        result = func(*args, **named)
        if before is not None and not torch.equal(before, random_state(self._device)):
            self._fault(CaptureFault.RANDOM, func, source)
        self._note(func, args, named, given, written, result, source)
        return result

    def _look(
        self,
        func: Operator,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: tuple[object, ...],
        written: Written,
        source: str,
    ) -> None:
        """Faults that show before the operator runs; it runs all the same, so that later lines are looked at too."""
        fault = host_fault(func, args, kwargs)
        if fault is not None:
            self._fault(fault, func, source)
        if takes_generator(given):
            self._fault(CaptureFault.RANDOM, func, source)
        if func in LIFTS:
            lifted = args[0]
            assert isinstance(lifted, Tensor)
            # A number becomes an argument of a kernel; more than one must be copied from the host.
            if lifted.dim():
                self._fault(CaptureFault.HOST_DATA, func, source)
            elif lifted.device.type == "cpu":
                self.keeps.append(lifted)
                number = repr(lifted.item())
                self._origins[memory_of(lifted)] = ("number", number)
        for tensor in written.tensors:
            kind, name = self._origin(tensor)
            if kind == "input":
                self._fault(CaptureFault.INPUT_WRITTEN, func, source, f"buffer '{name}'")

    def _note(
        self,
        func: Operator,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: tuple[object, ...],
        written: Written,
        result: object,
        source: str,
    ) -> None:
        signature = tuple(self._leaf(leaf) for leaf in given)
        memories = {memory_of(leaf) for leaf in given if isinstance(leaf, Tensor)}
        results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        made: list[tuple[int, Tensor]] = []
        for place, tensor in enumerate(results):
            if tensor.layout is not torch.strided:
                self._fault(CaptureFault.LAYOUT, func, source)
            elif tensor.numel() and memory_of(tensor) not in memories and self._origin(tensor)[0] == "outside":
                made.append((place, tensor))
                self._origins[memory_of(tensor)] = ("made", self._num_made)
                self._num_made += 1
        replayed = func not in UNWRITTEN and (written.mutates or bool(made))
        self.keeps += [args, kwargs, result]
        self.ops.append(
            RecordedOp(
                func,
                args,
                kwargs,
                signature,
                tuple(self.operand(tensor) for tensor in results),
                tuple(made),
                replayed,
                source,
            )
        )

    def _leaf(self, leaf: object) -> Constant | Operand:
        return self.operand(leaf) if isinstance(leaf, Tensor) else Constant(type(leaf), repr(leaf))

    def operand(self, tensor: Tensor) -> Operand:
        strided = tensor.layout is torch.strided
        return Operand(
            self._origin(tensor),
            int(tensor.storage_offset()) if strided else 0,
            tuple(tensor.shape),
            tensor.stride() if strided else (),
            tensor.dtype,
        )

    def _origin(self, tensor: Tensor) -> tuple[str, object]:
        if not tensor.numel():
            return ("empty", None)
        memory = memory_of(tensor)
        return self._origins.get(memory, ("outside", memory))

    def _fault(self, fault: CaptureFault, func: Operator, source: str, detail: str = "") -> None:
        self._log.add(Finding(fault, str(func), source, detail))


class _Functions(TorchFunctionMode):
    log: FaultLog

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in TO_THE_HOST:
            self.log.add(Finding(CaptureFault.HOST_READ, TO_THE_HOST[func], body_line()))
        elif func in FROM_PYTHON and args and not isinstance(args[0], Tensor):
            self.log.add(Finding(CaptureFault.HOST_DATA, FROM_PYTHON[func], body_line()))
        return func(*args, **(kwargs or {}))
