"""`Tape`: a body as the operators it ran, to be run again on the same memory without its Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen
from torch import Tensor

from outrider_backends.tape.comparing import compare
from outrider_backends.tape.operators import Operator, leaves, memory_of
from outrider_backends.tape.recording import RecordedOp, Recording, record

__all__ = ["Tape"]


@frozen(eq=False)
class _Step:
    """One operator to run again; ``into``: where each of its results belongs, by place among the flattened results."""

    func: Operator
    args: tuple[object, ...]
    kwargs: dict[str, object]
    into: tuple[tuple[int, Tensor], ...]


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
        self._steps = [_step(op) for op in recording.ops if op.replayed]
        results = {memory_of(tensor) for tensor in recording.outputs.values()}
        made = [tensor for op in recording.ops for _, tensor in op.made]
        self._scratch = [tensor for tensor in made if memory_of(tensor) not in results]
        self._results = [tensor for tensor in made if memory_of(tensor) in results]

    @classmethod
    @torch.inference_mode()
    def capture(
        cls,
        body: Callable[[], Mapping[str, Tensor]],
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str = "the body",
        vary: Callable[[], None] | None = None,
    ) -> Tape:
        """A tape of ``body``, which reads ``inputs`` and returns its outputs by name.

        The body is run three times for real: once to let it set up what it keeps, and twice recorded; ``vary``, called
        between the two, changes the contents of the inputs. The recordings must be equal.

        Raises:
            CaptureError: the body reads on the host, has shapes that depend on data, draws random numbers, makes tensors from
                Python data, writes to its inputs, or is not the same every time; every line of it is named.
        """
        body()
        first = record(body, inputs, device, what)
        if vary is not None:
            vary()
        second = record(body, inputs, device, what)
        compare(first, second, what)
        return cls(second)

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """The tensors that every replay writes its outcome to."""
        return self._outputs

    @property
    def num_operators(self) -> int:
        """How many operators a replay runs."""
        return len(self._steps)

    @property
    def owned_bytes(self) -> int:
        """Memory that belongs to the tape: outputs, and everything between."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self._scratch, *self._results))

    @torch.inference_mode()
    def replay(self) -> None:
        """Run the operators again, on what the inputs hold now. Overwrites `outputs`."""
        for step in self._steps:
            result = step.func(*step.args, **step.kwargs)
            if not step.into:
                continue
            if isinstance(result, Tensor):
                step.into[0][1].copy_(result)
                continue
            results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
            for place, tensor in step.into:
                tensor.copy_(results[place])

    @torch.inference_mode()
    def poison_scratch(self) -> None:
        """Spoil (NaN, huge numbers, true) all memory of the tape but its outputs, as graphs that share a pool do."""
        for tensor in self._scratch:
            _poison(tensor)

    @torch.inference_mode()
    def poison_outputs(self) -> None:
        """Spoil the outputs, as the next call of the same phase does."""
        for tensor in self._results:
            _poison(tensor)


def _step(op: RecordedOp) -> _Step:
    return _Step(op.func, op.args, op.kwargs, op.made)


def _poison(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
