"""Results on their way to the host: one asynchronous copy each, read when it has arrived."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider._torch import new_event
from outrider.loop.advance import RowReport, unpack
from outrider.types import RequestId

__all__ = ["PendingResult"]


@frozen(eq=False)
class PendingResult:
    """A packed result under way, with the requests its rows belonged to when it was launched.

    ``growth``: the most tokens it may give each of them.
    """

    request_ids: tuple[RequestId, ...]
    phase: str
    growth: int
    _host: Tensor
    _arrived: torch.cuda.Event | None

    @classmethod
    def start(cls, packed: Tensor, request_ids: Sequence[RequestId], phase: str) -> PendingResult:
        """Begin the copy of ``packed`` (`outrider.loop.advance`); does not wait for it."""
        growth = packed.shape[1] - 3
        if packed.device.type != "cuda":
            return cls(tuple(request_ids), phase, growth, packed, None)
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = new_event()
        event.record()
        return cls(tuple(request_ids), phase, growth, host, event)

    def wait(self) -> list[RowReport]:
        """The rows, once the copy has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return unpack(self._host)
