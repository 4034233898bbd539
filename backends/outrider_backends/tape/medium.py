"""`TapeMedium`: work captured as tapes, with what graphs that share memory do to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakSet

import torch
from torch import Tensor

from outrider.interfaces import Work
from outrider_backends.tape.tape import Tape

__all__ = ["TapeGraph", "TapeMedium"]


class TapeMedium:
    """Tapes of one or more runners that would share one pool of device memory.

    In a pool, a replay may write wherever another graph has its intermediate values or its outputs. With ``debug`` every replay
    spoils just that memory before it runs, its own included, so whoever holds what he may not hold, and a replay that reads
    what it has not written, shows at once. Without, nothing is done.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._debug = debug
        # As memory of a pool does, that of a tape goes with whoever holds it.
        self._members: WeakSet[Tape] = WeakSet()

    @property
    def name(self) -> str:
        """ "tape"."""
        return "tape"

    def refuses(self, device: torch.device) -> str | None:  # noqa: ARG002 - operators are replayed wherever they run
        """Nothing: a tape runs on any device."""
        return None

    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> TapeGraph:
        """``work`` as a tape; it is run for real, and changes nothing but in the warm-up.

        Raises:
            CaptureError: it cannot be captured; every line that prevents it is named.
        """
        tape = Tape.capture(work, inputs, device=device, what=what, warm=warm, vary=vary)
        self._members.add(tape)
        return TapeGraph(tape, self)

    def replay(self, tape: Tape) -> None:
        """Replay ``tape``, a member."""
        if self._debug:
            for member in self._members:
                member.spoil()
        tape.replay()

    def remove(self, tape: Tape) -> None:
        """Let ``tape`` go; its outputs stay as they are."""
        self._members.discard(tape)


class TapeGraph:
    """A tape as a member of its medium."""

    def __init__(self, tape: Tape, medium: TapeMedium) -> None:
        self.tape = tape
        self._medium = medium

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """The tensors that every replay writes."""
        return self.tape.outputs

    @property
    def nbytes(self) -> int:
        """Memory that belongs to the tape."""
        return self.tape.owned_bytes

    def replay(self) -> None:
        """Run the operators again."""
        self._medium.replay(self.tape)

    def close(self) -> None:
        """Leave the medium. May be called twice."""
        self._medium.remove(self.tape)
