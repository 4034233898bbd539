"""`Engine`: requests in, tokens out; rows are filled as others finish.

One step reads: admit, prefill, round, read. An embedder may call the four on their own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import torch
from attrs import frozen

from outrider.drafting.feedback import RoundFeedback
from outrider.errors import CapacityError, ClosedError, GraphError, InputError, NonFiniteLogitsError, OutriderError
from outrider.interfaces import CaptureProgress, PageAllocator, PreparedPrompt, TokenConstraint
from outrider.loop.capture import Capture
from outrider.loop.checks import check_request
from outrider.loop.clock import RoundClock
from outrider.loop.core import DecodeCore
from outrider.loop.limits import EngineLimits
from outrider.loop.media import check_prepared, known_ids, media_positions
from outrider.loop.prefill import PrefillPrompt, prefill
from outrider.loop.readback import Arrived, PendingResult
from outrider.loop.round import run_round
from outrider.loop.rows import RowSetup, RowStore
from outrider.loop.track import RequestTrack, trim_logprobs
from outrider.text.constraints import advance_path, check_start
from outrider.types import CaptureSummary, DispatchReport, RequestCount, RequestId, RoundShape, SamplingFeatures
from outrider.types.counts import counted
from outrider.types.outputs import TOKENS_ONLY, OutputWants, StepResult
from outrider.types.request import Emission, Request

__all__ = ["Engine"]


@frozen(eq=False)
class _Waiting:
    request_id: RequestId
    request: Request
    prepared: PreparedPrompt | None
    constraint: TokenConstraint | None


class Engine:
    """The speculative loop over many requests. Not thread-safe; one engine, one stream."""

    def __init__(
        self,
        core: DecodeCore,
        rows: RowStore,
        pages: PageAllocator,
        limits: EngineLimits,
        feedback: RoundFeedback | None = None,
    ) -> None:
        """Wire an engine from its parts; `outrider.loop.build.build_engine` does it from a target and a draft."""
        self._core = core
        self._rows = rows
        self._pages = pages
        self.limits = limits
        self._clock = RoundClock(RoundFeedback() if feedback is None else feedback, limits.rounds_in_flight)
        self._waiting: deque[_Waiting] = deque()
        self._admitted: list[tuple[RequestTrack, PrefillPrompt]] = []
        self._running: list[RequestTrack] = []
        self._by_id: dict[RequestId, RequestTrack] = {}
        self._pending: deque[PendingResult] = deque()
        self._emitted: list[Emission] = []
        self._next_id = 0
        self._closed = False

    # -- what an embedder calls ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, progress: CaptureProgress | None = None) -> CaptureSummary:
        """Capture what the runner captures at every size it names, so that no request pays for it. Synchronises.

        Rounds are captured greedy and sampled, with nothing wanted beside the tokens, and of a drafter that settles its
        length anew at the present one; whatever else comes is captured when it comes. Afterwards the engine is as before.
        Interrupted, it keeps what it has, and can be used.

        Raises:
            GraphError: requests wait or run.
        """
        self._check_open()
        if self.num_waiting or self.num_running:
            raise GraphError(
                f"capturing is asked with {counted(self.num_waiting, 'request')} waiting and {self.num_running} running, whose "
                "rows it needs; "
                "capture before the first one is submitted, or read until the engine has no work"
            )
        return Capture(self._core, self._rows, self.limits, self._round_step).run(progress)

    def submit(
        self, request: Request, prepared: PreparedPrompt | None = None, constraint: TokenConstraint | None = None
    ) -> RequestId:
        """Queue ``request``; ``prepared`` carries its media, ``constraint`` (at its beginning) what it may generate.

        Raises:
            InputError: empty prompt, ids out of range, a prompt that leaves no room; all faults at once. Or what was
                prepared is not for this prompt and target.
            CapacityError: the KV memory could never hold it.
        """
        self._check_open()
        spec, eos_ids, context = self._core.spec, self._core.target.eos_ids, self._context(prepared)
        check_request(request, spec, eos_ids, context, self.limits.max_stop_ids, media_positions(prepared))
        if prepared is not None:
            check_prepared(prepared, request.prompt, spec)
        needed = self._slots_needed(request, prepared)
        if not self._pages.can_ever_hold(needed):
            raise CapacityError(
                f"the request may need {needed} KV slots (prompt {len(request.prompt)}, up to {request.max_new_tokens} "
                f"new tokens, {self.limits.slack} for drafting), more than the KV memory has; lower max_new_tokens or "
                "give the engine more pages"
            )
        if constraint is not None:
            check_start(constraint, "the request's constraint")
        request_id = RequestId(self._next_id)
        self._next_id += 1
        self._waiting.append(_Waiting(request_id, request, prepared, constraint))
        return request_id

    @torch.inference_mode()
    def cancel(self, request_id: RequestId) -> None:
        """End a request, wherever it stands; one that has ended already, or never was, changes nothing.

        Its last emission, with what was read so far already emitted, comes with the next read.
        """
        for waiting in self._waiting:
            if waiting.request_id == request_id:
                self._waiting.remove(waiting)
                self._emitted.append(Emission(request_id, (), finish_reason="cancelled"))
                return
        track = self._by_id.get(request_id)
        if track is not None:
            self._release(track)
            self._emitted.append(Emission(request_id, (), finish_reason="cancelled"))

    @torch.inference_mode()
    def admit(self) -> tuple[RequestId, ...]:
        """Give rows and KV pages to waiting requests, first come first served, as many as fit.

        Where that raises (out of memory, a user's interrupt), the request at hand is cancelled and the others go on.
        """
        self._check_open()
        admitted: list[RequestId] = []
        while self._waiting and len(self._running) + len(self._admitted) < self.limits.max_batch_size:
            head = self._waiting[0]
            row = len(self._running) + len(self._admitted)
            if not self._pages.reserve(row, self._slots_needed(head.request, head.prepared)):
                break
            self._waiting.popleft()
            try:
                admitted.append(self._place(head, row))
            except BaseException:  # the row is half written: it and its pages must not stay taken
                self._pages.release(row)
                self._rows.clear_row(row)
                self._emitted.append(Emission(head.request_id, (), finish_reason="cancelled"))
                raise
        return tuple(admitted)

    @torch.inference_mode()
    def prefill(self) -> None:
        """Launch the prompts of all admitted requests; their first tokens come with a later `read`.

        Where that raises (out of memory, a user's interrupt), these requests are cancelled and the others go on.
        """
        self._check_open()
        if not self._admitted:
            return
        tracks = [track for track, _ in self._admitted]
        prompts = [prompt for _, prompt in self._admitted]
        constraints = {place: track.constraint for place, track in enumerate(tracks) if track.constraint is not None}
        try:
            result = prefill(self._core, self._rows, tracks[0].row, prompts, _wants(tracks), constraints)
        except BaseException:  # some prompts may be half done: none of them can be run again
            for track in reversed(tracks):
                self.cancel(track.request_id)
            raise
        self._admitted = []
        self._running += tracks
        self._launched(PendingResult.start(result, [track.request_id for track in tracks], "prefill"))

    @torch.inference_mode()
    def run_round(self) -> None:
        """Launch one round of all running requests; what it emits comes with a later `read`.

        Waits for what is under way first where a request has a token constraint, which must have seen every token.
        """
        self._check_open()
        if any(track.constraint is not None for track in self._running):
            self._collect(leave=0)
        if not self._running:
            return
        longest = max(track.upper_total for track in self._running)
        started = time.perf_counter()
        state = self._rows.view(0, len(self._running), longest)
        constraints = {track.row: track.constraint for track in self._running if track.constraint is not None}
        wants = _wants(self._running)
        if constraints:
            result = run_round(self._core, state, wants, constraints)
        else:
            shape = self._round_shape(len(self._running), longest, state.sampling.features, wants)
            result = self._core.runner.run_round(shape, self._round_step)
        self._launched(
            PendingResult.start(
                result.first(len(self._running)), [track.request_id for track in self._running], "verify", started
            )
        )

    def _round_step(self, shape: RoundShape) -> StepResult:
        return run_round(self._core, self._rows.view(0, shape.requests, shape.max_length), shape.wants)

    def _round_shape(self, requests: int, longest: int, features: SamplingFeatures, wants: OutputWants) -> RoundShape:
        """What the runner must know of a round. Rows that were prepared and not prefilled may not run along as idle ones."""
        most_length = self.limits.context_length
        if self._core.plans.capabilities.any_length:
            longest = most_length
        return RoundShape(
            RequestCount(requests),
            longest,
            self._core.drafter.shape,
            features,
            wants,
            most_requests=RequestCount(requests if self._admitted else self.limits.max_batch_size),
            most_length=most_length,
        )

    @torch.inference_mode()
    def read(self, leave: int = 0) -> list[Emission]:
        """What arrived, oldest first; waits until at most ``leave`` results are under way. Frees finished rows."""
        self._collect(leave)
        emissions, self._emitted = self._emitted, []
        return emissions

    def step(self) -> list[Emission]:
        """Admit, prefill, run one round, read: what arrived."""
        self.admit()
        self.prefill()
        self.run_round()
        return self.read(leave=self.limits.rounds_in_flight if self._running else 0)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or has yet to be read."""
        return bool(self._waiting or self._admitted or self._running or self._pending or self._emitted)

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._running) + len(self._admitted)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row."""
        return len(self._waiting)

    @property
    def draft_depth(self) -> int:
        """The most tokens a round can accept before the bonus; 0 when nothing drafts."""
        return self.limits.draft_depth

    @property
    def report(self) -> DispatchReport:
        """What the runner ran where, and what it refused why; live."""
        return self._core.runner.report

    def close(self) -> None:
        """Free the runner's graphs; the engine cannot be used afterwards. May be called twice."""
        self._closed = True
        self._core.runner.close()

    # -- bookkeeping -----------------------------------------------------------------------------------------------

    def _collect(self, leave: int) -> None:
        """Take in results, oldest first, until at most ``leave`` are under way; frees the rows of finished requests."""
        while len(self._pending) > max(leave, 0):
            pending = self._pending.popleft()
            rows = pending.wait()
            self._clock.arrived(pending, [row.report for row in rows])
            for request_id, arrived in zip(pending.request_ids, rows, strict=True):
                track = self._by_id.get(request_id)
                if track is not None:
                    self._take(track, pending, arrived)

    def _take(self, track: RequestTrack, pending: PendingResult, arrived: Arrived) -> None:
        report = arrived.report
        reason = track.take(report, pending.growth)
        error: OutriderError | None = None
        if reason == "error":
            error = _non_finite(track.request_id, pending.phase)
        elif track.constraint is not None:
            try:
                advance_path(track.constraint, report.token_ids)
            except InputError as dead_end:
                reason, error = "error", dead_end
        verified = pending.phase == "verify" and report.accept_length > 0
        if report.token_ids or reason is not None:
            self._emitted.append(
                Emission(
                    track.request_id,
                    report.token_ids,
                    accept_length=report.accept_length if verified else None,
                    finish_reason=reason,
                    logprobs=trim_logprobs(arrived.logprobs, track.request.wants.logprobs),
                    hidden=track.hidden_rows(arrived.hidden, len(report.token_ids), pending.phase == "prefill"),
                    error=error,
                )
            )
        if reason is not None:
            self._release(track)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed; build a new one")

    def _context(self, prepared: PreparedPrompt | None) -> int:
        """The most tokens of a sequence; positions that run ahead of the tokens reach the model's limit earlier."""
        ahead = 0 if prepared is None else max(prepared.position_offset, 0)
        return min(self.limits.context_length, self._core.spec.max_positions - ahead)

    def _max_total(self, request: Request, prepared: PreparedPrompt | None) -> int:
        return min(len(request.prompt) + request.max_new_tokens, self._context(prepared))

    def _slots_needed(self, request: Request, prepared: PreparedPrompt | None) -> int:
        return self._max_total(request, prepared) + self.limits.slack

    def _place(self, waiting: _Waiting, row: int) -> RequestId:
        request, prepared = waiting.request, waiting.prepared
        track = RequestTrack(
            waiting.request_id,
            request,
            row,
            self._max_total(request, prepared),
            total=len(request.prompt),
            constraint=waiting.constraint,
        )
        setup = RowSetup(
            prompt=request.prompt if prepared is None else known_ids(request.prompt, self._core.spec.vocab_size),
            max_total=track.max_total,
            stop_ids=self._core.target.eos_ids if request.eos_ids is None else request.eos_ids,
            draft_cap=self.draft_depth if request.draft_cap is None else min(request.draft_cap, self.draft_depth),
            position_offset=0 if prepared is None else prepared.position_offset,
            sampling=request.sampling,
        )
        self._rows.set_row(row, setup)
        self._by_id[track.request_id] = track
        self._admitted.append((track, PrefillPrompt.of(request.prompt, prepared)))
        return track.request_id

    def _launched(self, pending: PendingResult) -> None:
        for request_id in pending.request_ids:
            self._by_id[request_id].in_flight += pending.growth
        self._pending.append(pending)

    def _release(self, track: RequestTrack) -> None:
        """Take the row back. Rows stay dense: the last running row fills its place, the last admitted one the next."""
        del self._by_id[track.request_id]
        self._pages.release(track.row)
        hole = track.row
        if hole < len(self._running):
            last = self._running.pop()
            if last is not track:
                self._running[hole] = last
                hole = self._move(last, hole)
        if self._admitted:
            last_admitted = self._admitted.pop()
            if last_admitted[0] is not track:
                kept = [admitted for admitted in self._admitted if admitted[0] is not track]
                kept.insert(hole - len(self._running), last_admitted)
                self._admitted = kept
                hole = self._move(last_admitted[0], hole)
        self._rows.clear_row(hole)

    def _move(self, track: RequestTrack, row: int) -> int:
        """Move ``track`` to the empty ``row``; the row it leaves."""
        left = track.row
        self._pages.move_row(left, row)
        self._rows.move_row(left, row)
        self._core.drafter.move_row(left, row)
        track.row = row
        return left


def _wants(tracks: Iterable[RequestTrack]) -> OutputWants:
    """Everything that any of the requests wants."""
    wants = TOKENS_ONLY
    for track in tracks:
        wants = wants | track.request.wants
    return wants


def _non_finite(request_id: RequestId, phase: str) -> NonFiniteLogitsError:
    return NonFiniteLogitsError(
        f"request {request_id}: the target's logits were NaN or infinite in the {phase} pass; the weights or the dtype "
        "overflow (try dtype float32 or bfloat16), or the request's settings left no token to choose. Other requests go on."
    )
