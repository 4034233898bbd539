"""`Tape`: a body as the operators it ran, to be run again on the same memory without its Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import Work
from outrider_backends.tape.comparing import compare
from outrider_backends.tape.operators import Operator, leaves
from outrider_backends.tape.recording import Recording, record

__all__ = ["Tape"]


@frozen(eq=False)
class _Operation:
    """One operator to run again; ``into``: where each of its results belongs, by place among the flattened results."""

    func: Operator
    args: tuple[object, ...]
    kwargs: dict[str, object]
    into: tuple[tuple[int, Tensor], ...]

    def run(self) -> None:
        """Call it, and copy what it gives to where the recording had it."""
        result = self.func(*self.args, **self.kwargs)
        if not self.into:
            return
        if isinstance(result, Tensor):
            self.into[0][1].copy_(result)
            return
        results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        for place, tensor in self.into:
            tensor.copy_(results[place])


class Tape:
    """A captured body. `replay` computes its outputs anew from what its input buffers hold by then, bit for bit as it would.

    Every operator is called again with the very tensors of the recording, and its result is copied to the memory that the
    recording got, so addresses never change. Operators that only make views are not called again: a view is an address,
    a shape and strides, none of which changes, so the recorded view shows the new values already. Nor are those that only
    allocate.

    Tensors from outside (weights, caches, buffers of a plan) are kept alive and used where they are; what the body writes
    there, a replay writes too. The body itself is not kept.
    """

    def __init__(self, recording: Recording) -> None:
        """Make a tape of a ``recording`` that was found capturable; `capture` is the way to one."""
        self._keeps = recording.keeps
        self._outputs = recording.outputs
        self._steps = _steps(recording)
        self._made = [tensor for op in recording.ops for _, tensor in op.made]

    @classmethod
    @torch.inference_mode()
    def capture(
        cls,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str = "the body",
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Tape:
        """A tape of ``work``, which reads ``inputs`` and returns its outputs by name.

        It is run three times for real: where it is ``warm``ed up, once to let it set up what it keeps; and twice recorded,
        after which all memory is as before (`record`). ``vary``, called between the two, changes the contents of the inputs.
        The recordings must be equal.

        Raises:
            CaptureError: the work reads on the host, has shapes that depend on data, draws random numbers, makes tensors from
                Python data, writes to its inputs, or is not the same every time; every line of it is named.
        """
        if warm:
            work(_skip)
        first = record(work, inputs, device, what)
        if vary is not None:
            vary()
        second = record(work, inputs, device, what)
        compare(first, second, what)
        return cls(second)

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """The tensors that every replay writes its outcome to."""
        return self._outputs

    @property
    def num_operators(self) -> int:
        """How many operators a replay runs."""
        return sum(isinstance(step, _Operation) for step in self._steps)

    @property
    def owned_bytes(self) -> int:
        """Memory that belongs to the tape: outputs, and everything between."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._made)

    @torch.inference_mode()
    def replay(self) -> None:
        """Run the operators again, on what the inputs hold now, with the eager pieces. Overwrites `outputs`."""
        for step in self._steps:
            if isinstance(step, _Operation):
                step.run()
            else:
                step()

    @torch.inference_mode()
    def spoil(self) -> None:
        """Spoil (NaN, huge numbers, true) all memory of the tape, outputs included, as graphs that share a pool may."""
        for tensor in self._made:
            _poison(tensor)


def _steps(recording: Recording) -> list[_Operation | Callable[[], None]]:
    steps: list[_Operation | Callable[[], None]] = []
    breaks = iter(recording.breaks)
    upcoming = next(breaks, None)
    for number, op in enumerate(recording.ops):
        while upcoming is not None and upcoming[0] == number:
            steps.append(upcoming[1])
            upcoming = next(breaks, None)
        if op.replayed:
            steps.append(_Operation(op.func, op.args, op.kwargs, op.made))
    if upcoming is not None:
        steps += [upcoming[1], *(eager for _, eager in breaks)]
    return steps


def _skip(eager: Callable[[], None]) -> None:
    """A break in a warm-up: there is nothing to run between segments."""


def _poison(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
