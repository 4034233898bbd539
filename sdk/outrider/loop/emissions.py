"""What one arrived result gives one request."""

from __future__ import annotations

from outrider.errors import InputError, NonFiniteLogitsError, OutriderError
from outrider.loop.readback import Arrived, PendingResult
from outrider.loop.track import RequestTrack, trim_logprobs
from outrider.text.constraints import advance_path
from outrider.types import RequestId
from outrider.types.request import Emission

__all__ = ["emission_of"]


def emission_of(track: RequestTrack, pending: PendingResult, arrived: Arrived) -> Emission | None:
    """Account for a row of ``pending`` in ``track``, whose constraint moves on; what is emitted, if anything.

    A request ends before the first token that its constraint does not allow, however its tokens are divided into rounds.
    """
    report = arrived.report
    reason = track.take(report, pending.growth)
    error: OutriderError | None = None
    token_ids = report.token_ids
    if reason == "error":
        error = _non_finite(track.request_id, pending.phase)
    elif track.constraint is not None:
        for place, token_id in enumerate(token_ids):
            try:
                advance_path(track.constraint, (token_id,))
            except InputError as dead_end:
                reason, error, token_ids = "error", dead_end, token_ids[:place]
                break
    if not token_ids and reason is None:
        return None
    verified = pending.phase == "verify" and report.accept_length > 0
    return Emission(
        track.request_id,
        token_ids,
        accept_length=report.accept_length if verified else None,
        finish_reason=reason,
        logprobs=trim_logprobs(arrived.logprobs[: len(token_ids)], track.request.wants.logprobs),
        hidden=track.hidden_rows(arrived.hidden, len(token_ids), pending.phase == "prefill"),
        error=error,
    )


def _non_finite(request_id: RequestId, phase: str) -> NonFiniteLogitsError:
    return NonFiniteLogitsError(
        f"request {request_id}: the target's logits were NaN or infinite in the {phase} pass; the weights or the dtype "
        "overflow (try dtype float32 or bfloat16), or the request's settings left no token to choose. Other requests go on."
    )
