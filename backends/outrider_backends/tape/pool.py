"""`TapePool`: what graphs that share a memory pool do to each other, shown without sharing."""

from __future__ import annotations

from attrs import frozen

from outrider_backends.tape.tape import Tape

__all__ = ["TapePool"]


@frozen
class _Member:
    tape: Tape
    group: object


class TapePool:
    """The tapes of one or more runners that would share one pool of device memory.

    In a pool, a replay may write wherever another graph has its intermediate values, and where an earlier call of the same
    phase has its outputs. With ``debug`` every replay spoils just that memory before it runs, its own included, so whoever
    holds what he may not hold, and a replay that reads what it has not written, shows at once. Without, nothing is done.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self.debug = debug
        self._members: list[_Member] = []

    def add(self, tape: Tape, group: object) -> None:
        """Take ``tape`` in; outputs of one ``group`` (the same object or an equal one) are valid one at a time."""
        self._members.append(_Member(tape, group))

    def remove(self, tape: Tape) -> None:
        """Let ``tape`` go; its outputs stay as they are."""
        self._members = [member for member in self._members if member.tape is not tape]

    def replay(self, tape: Tape) -> None:
        """Replay ``tape``, a member."""
        if self.debug:
            group = next(member.group for member in self._members if member.tape is tape)
            for member in self._members:
                member.tape.poison_scratch()
                if member.group == group:
                    member.tape.poison_outputs()
        tape.replay()
