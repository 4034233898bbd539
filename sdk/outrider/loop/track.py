"""What the host knows of one running request."""

from __future__ import annotations

from attrs import define

from outrider.loop.advance import RowReport, RowStatus
from outrider.types import RequestId
from outrider.types.request import FinishReason, Request

__all__ = ["RequestTrack"]


@define(eq=False)
class RequestTrack:
    """Host-side account of a request that holds a row. ``total``: prompt + tokens read so far."""

    request_id: RequestId
    request: Request
    row: int
    max_total: int
    total: int
    in_flight: int = 0

    @property
    def upper_total(self) -> int:
        """Upper bound of the tokens of the sequence, results under way included."""
        return min(self.total + self.in_flight, self.max_total)

    def take(self, report: RowReport, growth: int) -> FinishReason | None:
        """Account for one arrived result; why the request ended, if it did."""
        self.in_flight -= growth
        self.total += len(report.token_ids)
        match report.status:
            case RowStatus.STOP_ID:
                return "eos"
            case RowStatus.FULL:
                generated = self.total - len(self.request.prompt)
                return "length" if generated >= self.request.max_new_tokens else "context"
            case RowStatus.NON_FINITE:
                return "error"
            case RowStatus.RUNNING | RowStatus.IDLE:
                return None
