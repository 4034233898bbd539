"""What an arrived result gives its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from outrider.errors import InputError, NonFiniteLogitsError, OutriderError
from outrider.loop.readback import Arrived, PendingResult
from outrider.loop.track import RequestTrack, trim_logprobs
from outrider.text.constraints import advance_path
from outrider.types import RequestId
from outrider.types.request import Emission

__all__ = ["Taken", "emission_of", "take_rows"]


@frozen(eq=False)
class Taken:
    """What a result gave: ``emissions``, the requests that ``ended`` with it, and the first ``failure`` of host code in it."""

    emissions: list[Emission]
    ended: list[RequestTrack]
    failure: BaseException | None


def take_rows(
    pending: PendingResult, rows: Sequence[Arrived], find: Callable[[RequestId], RequestTrack | None]
) -> Taken:
    """Account for all ``rows`` of ``pending`` whose requests ``find`` knows still.

    A request whose constraint raises is cancelled: it stands nobody knows where. Those after it lose nothing.
    """
    emissions: list[Emission] = []
    ended: list[RequestTrack] = []
    failures: list[BaseException] = []
    for request_id, arrived in zip(pending.request_ids, rows, strict=True):
        track = find(request_id)
        if track is None:
            continue
        try:
            emission = emission_of(track, pending, arrived)
        except BaseException as error:  # handed on, when the rows after it were taken
            failures.append(error)
            emission = Emission(request_id, (), finish_reason="cancelled")
        if emission is not None:
            emissions.append(emission)
            if emission.finish_reason is not None:
                ended.append(track)
    return Taken(emissions, ended, failures[0] if failures else None)


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
