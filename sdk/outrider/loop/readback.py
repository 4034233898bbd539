"""Results on their way to the host: asynchronous copies, read when they have arrived."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider._torch import float_rows, int_rows, new_event
from outrider.loop.advance import RowReport, unpack
from outrider.types import RequestId
from outrider.types.outputs import StepResult, TokenLogprobs

__all__ = ["Arrived", "PendingResult"]


@frozen(eq=False)
class Arrived:
    """One row of a result: its report, and per emitted token what was asked beside it.

    ``hidden``: rows of states as in `StepResult.hidden`, on the device; ``None`` where nobody wanted them.
    """

    report: RowReport
    logprobs: tuple[TokenLogprobs, ...] = ()
    hidden: Tensor | None = None


@frozen(eq=False)
class PendingResult:
    """A result under way, with the requests its rows belonged to when it was launched.

    ``growth``: the most tokens it may give each of them. ``started``: when its launch began (`time.perf_counter`).
    ``after_prompts``: whether prompts were run between it and the round before it.
    """

    request_ids: tuple[RequestId, ...]
    phase: str
    growth: int
    _packed: Tensor
    _logprobs: Tensor | None
    _top_ids: Tensor | None
    _hidden: tuple[Tensor, ...] | None
    _event: torch.cuda.Event | None
    started: float
    after_prompts: bool

    @classmethod
    def start(
        cls,
        result: StepResult,
        request_ids: Sequence[RequestId],
        phase: str,
        started: float = 0.0,
        after_prompts: bool = False,
    ) -> PendingResult:
        """Begin the copies of ``result``; does not wait for them. Hidden states stay on the device."""
        packed, logprobs, top_ids = (_to_host(part) for part in (result.packed, result.logprobs, result.top_ids))
        assert packed is not None
        event = None
        if result.packed.device.type == "cuda":
            event = new_event()
            event.record()
        growth = packed.shape[1] - 3
        # A runner may overwrite its result in the next round; the host copies are ordered before that, these are not.
        hidden = None if result.hidden is None else tuple(rows.clone() for rows in result.hidden)
        ids = tuple(request_ids)
        return cls(ids, phase, growth, packed, logprobs, top_ids, hidden, event, started, after_prompts)

    def wait(self) -> list[Arrived]:
        """The rows, once the copies have arrived."""
        if self._event is not None:
            self._event.synchronize()
        reports = unpack(self._packed)
        if self._logprobs is None and self._hidden is None:
            return [Arrived(report) for report in reports]
        return [
            Arrived(
                report,
                self._row_logprobs(row, len(report.token_ids)),
                None if self._hidden is None else self._hidden[row],
            )
            for row, report in enumerate(reports)
        ]

    def _row_logprobs(self, row: int, count: int) -> tuple[TokenLogprobs, ...]:
        if self._logprobs is None or self._top_ids is None:
            return ()
        values, ids = float_rows(self._logprobs[row, :count]), int_rows(self._top_ids[row, :count])
        return tuple(
            TokenLogprobs(chosen, tuple(zip(best, scores, strict=True)))
            for (chosen, *scores), best in zip(values, ids, strict=True)
        )


def _to_host(part: Tensor | None) -> Tensor | None:
    if part is None:
        return None
    if part.device.type != "cuda":
        return part.clone()  # there may be no copy to make, and yet the runner overwrites it in the next round
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
    return host.copy_(part, non_blocking=True)
