"""What the host knows of one running request."""

from __future__ import annotations

from attrs import define, evolve
from torch import Tensor

from outrider.interfaces import TokenConstraint
from outrider.loop.advance import RowReport, RowStatus
from outrider.types import RequestId
from outrider.types.outputs import CaptureHiddenMode, TokenLogprobs
from outrider.types.request import FinishReason, Request

__all__ = ["RequestTrack", "trim_logprobs"]


@define(eq=False)
class RequestTrack:
    """Host-side account of a request that holds a row. ``total``: prompt + tokens read so far."""

    request_id: RequestId
    request: Request
    row: int
    max_total: int
    total: int
    in_flight: int = 0
    constraint: TokenConstraint | None = None

    @property
    def upper_total(self) -> int:
        """Upper bound of the tokens of the sequence, results under way included."""
        return min(self.total + self.in_flight, self.max_total)

    def take(self, report: RowReport, growth: int) -> FinishReason | None:
        """Account for one arrived result; why the request ended, if it did."""
        self.in_flight -= growth
        self.total += len(report.token_ids)
        match report.status:
            case RowStatus.RUNNING | RowStatus.IDLE:
                return None
            case RowStatus.STOP_ID:
                return "eos"
            case RowStatus.FULL:
                generated = self.total - len(self.request.prompt)
                return "length" if generated >= self.request.max_new_tokens else "context"
            case RowStatus.NON_FINITE:
                return "error"

    def hidden_rows(self, hidden: Tensor | None, emitted: int, prefilled: bool) -> Tensor | None:
        """The states this request wants, of those that the batch was given for it; ``None`` of a round that emits nothing."""
        mode = self.request.wants.hidden
        if hidden is None or mode is CaptureHiddenMode.NULL or not (emitted or prefilled):
            return None
        rows = hidden if prefilled else hidden[:emitted]
        return rows[-1:] if mode is CaptureHiddenMode.LAST else rows


def trim_logprobs(logprobs: tuple[TokenLogprobs, ...], count: int | None) -> tuple[TokenLogprobs, ...]:
    """Only as many of the best as the request wants; a neighbour may have wanted more."""
    if count is None:
        return ()
    return tuple(evolve(each, top=each.top[:count]) for each in logprobs)
