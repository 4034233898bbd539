"""What a round emits, where it is cut, and the state it leaves; packed for one copy to the host."""

from __future__ import annotations

from enum import IntEnum

import torch
from attrs import frozen
from torch import Tensor

from outrider._torch import int_rows
from outrider.types import Acceptance
from outrider.types.state import DecodeState

__all__ = ["RowReport", "RowStatus", "advance", "unpack"]


class RowStatus(IntEnum):
    """How a row stands after a round."""

    RUNNING = 0
    STOP_ID = 1
    """An end-of-sequence id was emitted, as the last token."""
    FULL = 2
    """The token or context limit is reached."""
    NON_FINITE = 3
    """The target's logits were NaN or infinite; nothing was emitted."""
    IDLE = 4
    """The row had finished before; nothing was emitted."""


_STATUSES = tuple(RowStatus)


def advance(state: DecodeState, acceptance: Acceptance) -> Tensor:
    """Emit the accepted tokens and the bonus, cut at stop ids and limits, and move ``state`` on, in place.

    Returns ``[B, K + 4]`` int64: K + 1 tokens, how many of them are emitted, the acceptance length (bonus included, uncut),
    and the `RowStatus`. Device only, static shapes, capture-safe.
    """
    tokens = acceptance.tokens
    width = tokens.shape[1]
    nth = torch.arange(1, width + 1, device=tokens.device)
    indices = state.lengths[:, None] + nth
    room = state.max_totals - indices[:, 0]
    is_other = (tokens[:, :, None] != state.stop_ids[:, None, :]).all(dim=2)
    up_to_stop = nth.masked_fill(is_other, width + 1).amin(dim=1)
    uncut = acceptance.counts + 1
    emitted = torch.minimum(torch.minimum(uncut, room), up_to_stop)
    # Later lines win: a stop id over the limit, NaN over both, and a row that had finished over everything.
    status = (emitted == room) * RowStatus.FULL
    status.masked_fill_(emitted == up_to_stop, RowStatus.STOP_ID)
    emits_nothing = acceptance.finite <= state.finished  # not finite, or finished
    status.masked_fill_(emits_nothing, RowStatus.NON_FINITE)
    status.masked_fill_(state.finished, RowStatus.IDLE)
    emitted.masked_fill_(emits_nothing, 0)
    packed = torch.cat([tokens, emitted[:, None], uncut[:, None], status[:, None]], dim=1)

    # Columns past `emitted` land beyond the sequence and are overwritten by the next round.
    state.tokens.scatter_(1, indices, tokens)
    state.lengths.add_(emitted)
    # The newest token of a row that emits, and of any other the root itself, which is in the history too.
    torch.gather(state.tokens, 1, state.lengths[:, None], out=state.roots[:, None])
    state.finished.logical_or_(status)  # true of all but RUNNING
    return packed


@frozen
class RowReport:
    """One row of a packed result, on the host. ``accept_length``: 0 where nothing was verified."""

    token_ids: tuple[int, ...]
    accept_length: int
    status: RowStatus


def unpack(packed: Tensor) -> list[RowReport]:
    """The rows of a packed result that has arrived on the host."""
    reports: list[RowReport] = []
    for *tokens, emitted, uncut, number in int_rows(packed):
        status = _STATUSES[number]
        reports.append(RowReport(tuple(tokens[:emitted]), uncut if number < RowStatus.NON_FINITE else 0, status))
    return reports
