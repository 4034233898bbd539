"""`Engine`: requests in, tokens out; rows are filled as others finish.

One step reads: admit, prefill, round, read. An embedder may call the four on their own.
"""

from __future__ import annotations

import time
from collections import deque

import torch
from attrs import frozen

from outrider.drafting.feedback import RoundListeners
from outrider.errors import CapacityError, ClosedError, ConfigurationError, GraphError
from outrider.interfaces import CaptureProgress, GraphRunner, PageAllocator, PreparedPrompt, TokenConstraint
from outrider.loop.capture import Capture
from outrider.loop.checks import check_request
from outrider.loop.clock import RoundClock
from outrider.loop.core import DecodeCore
from outrider.loop.emissions import take_rows
from outrider.loop.host_rounds import count_host_round
from outrider.loop.limits import EngineLimits
from outrider.loop.media import check_prepared, known_ids, media_positions
from outrider.loop.prompt_pass import PromptPass
from outrider.loop.prompts import PrefillPrompt
from outrider.loop.readback import PendingResult
from outrider.loop.round import run_round
from outrider.loop.row_owners import Admission, Batch, RowOwners
from outrider.loop.rows import RowSetup, RowStore
from outrider.loop.track import RequestTrack
from outrider.text.constraints import check_start
from outrider.types import CaptureSummary, DispatchReport, RequestCount, RequestId, RoundShape, SamplingFeatures
from outrider.types.counts import counted
from outrider.types.outputs import OutputWants, StepResult
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
        feedback: RoundListeners | None = None,
    ) -> None:
        """Wire an engine from its parts; `outrider.loop.build.build_engine` does it from a target and a draft."""
        self._core = core
        self._rows = rows
        self._pages = pages
        self.limits = limits
        self.runner: GraphRunner = core.runner
        """What runs its bodies; `MultimodalProvider.prepare` takes it for those of media."""
        self._rounds_are_captured = core.runner.sizes.rounds
        self._clock = RoundClock(RoundListeners() if feedback is None else feedback, limits.rounds_in_flight)
        self._waiting: deque[_Waiting] = deque()
        self._owners = RowOwners(rows, pages, core.drafter)
        self._pending: deque[PendingResult] = deque()
        self._prompts_were_run = False  # since the last round
        self._emitted: list[Emission] = []
        self._next_id = 0
        self._closed = False

    # -- what an embedder calls ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, progress: CaptureProgress | None = None) -> CaptureSummary:
        """Capture what the runner captures at every size it names, so that no request pays for it. Synchronises.

        Rounds are captured greedy and sampled, with nothing wanted beside the tokens, and of a drafter that settles its
        length anew at the present one; whatever else comes is captured when it comes. Of a drafter that runs on the host, which
        is not called, only the target's passes are. Afterwards the engine is as before.
        Interrupted, it keeps what it has, and can be used.

        Raises:
            GraphError: requests wait or run.
        """
        self._check_open()
        if self.num_waiting or self.num_running:
            raise GraphError(
                f"capturing is asked with {counted(self.num_waiting, 'request')} waiting and {self.num_running} running, whose "
                "rows it needs; capture before the first one is submitted, or read until the engine has no work"
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
        track = self._owners.find(request_id)
        if track is not None:
            self._owners.release(track)
            self._emitted.append(Emission(request_id, (), finish_reason="cancelled"))

    @torch.inference_mode()
    def admit(self) -> tuple[RequestId, ...]:
        """Give rows and KV pages to waiting requests, first come first served, as many as fit.

        Where that raises (out of memory, a user's interrupt), the request at hand is cancelled and the others go on.
        """
        self._check_open()
        admitted: list[RequestId] = []
        while self._waiting and self._owners.num_rows < self.limits.max_batch_size:
            head = self._waiting[0]
            row = self._owners.num_rows
            if not self._pages.reserve(row, self._slots_needed(head.request, head.prepared)):
                break
            self._waiting.popleft()
            try:
                self._owners.admit(self._admission(head, row))
            except BaseException:  # its pages must not stay taken
                self._pages.release(row)
                self._emitted.append(Emission(head.request_id, (), finish_reason="cancelled"))
                raise
            admitted.append(head.request_id)
        return tuple(admitted)

    @torch.inference_mode()
    def prefill(self, max_tokens: int | None = None) -> None:
        """Launch one pass over the prompts of admitted requests, first come first served.

        It takes as many prompts as ``max_tokens`` tokens hold (by default, and at most, `EngineLimits.max_prefill_tokens`); the
        last one may be cut, and goes on with the next pass. Requests whose prompts end run from now on; their first tokens come
        with a later `read`.
        Where that raises (out of memory, a user's interrupt), the requests of this pass are cancelled and the others go on.

        Raises:
            ConfigurationError: ``max_tokens`` is less than 1, or more than the engine was built for.
        """
        self._check_open()
        most = self.limits.max_prefill_tokens
        budget = most if max_tokens is None else max_tokens
        if not 1 <= budget <= most:
            raise ConfigurationError(
                f"a pass of {budget} tokens of prompts is asked, allowed is 1 to {most} (max_prefill_tokens); to run none now, "
                "do not call prefill, and for more build the engine with a larger limit"
            )
        if not self._owners.admitted:
            return
        self._prompts_were_run = True
        step = PromptPass.of(self._owners.admitted, budget)
        rows = step.rows
        try:
            result = step.run(self._core, self._rows)
            if result is not None:
                self._owners.start(step.starting)
                self._launched(PendingResult.start(result, step.starting.request_ids, "prefill"), step.starting)
        except BaseException:  # what was half run cannot be run again
            tracks = [admission.track for admission in step.admissions]
            self._emitted += [Emission(track.request_id, (), finish_reason="cancelled") for track in tracks]
            self._owners.release(*tracks)
            for row in rows:
                self._rows.clear_row(row)
            raise

    @torch.inference_mode()
    def run_round(self) -> None:
        """Launch one round of all requests whose prompts have ended; what it emits comes with a later `read`.

        Waits for what is under way first where host code runs in the round, which must have seen every token: a drafter that
        `runs_on_host`, or a request's token constraint.
        Where that raises (out of memory, a user's interrupt), the round can be run again, but requests which it had moved on
        already are cancelled: what it gave them is lost.
        """
        self._check_open()
        if self._core.drafter.runs_on_host or self._owners.running.constraints:
            self._collect(leave=0)
        batch = self._owners.running
        if not batch.tracks:
            return
        try:
            self._launch_round(batch)
        except BaseException:
            self._cancel_moved()
            raise

    def _launch_round(self, batch: Batch) -> None:
        requests = len(batch.tracks)
        longest = max([track.upper_total for track in batch.tracks])
        started = time.perf_counter()
        shape = self._round_shape(requests, longest, self._rows.sampling.features(0, requests), batch.wants)
        if self._core.drafter.runs_on_host or batch.constraints:
            if self._rounds_are_captured:
                count_host_round(self.report, shape, len(batch.constraints))
            state = self._rows.view(0, requests, longest)
            result = run_round(self._core, state, batch.wants, batch.constraints)
        else:
            result = self._core.runner.run_round(shape, self._round_step).first(requests)
        after_prompts, self._prompts_were_run = self._prompts_were_run, False
        self._launched(PendingResult.start(result, batch.request_ids, "verify", started, after_prompts), batch)

    def _round_step(self, shape: RoundShape) -> StepResult:
        return run_round(self._core, self._rows.view(0, shape.requests, shape.max_length), shape.wants)

    def _round_shape(self, requests: int, longest: int, features: SamplingFeatures, wants: OutputWants) -> RoundShape:
        """What the runner must know of a round. Rows whose prompts have not ended may run along as idle ones."""
        most_length = self.limits.context_length
        if self._core.plans.capabilities.any_length:
            longest = most_length
        return RoundShape(
            RequestCount(requests),
            longest,
            self._core.drafter.shape,
            features,
            wants,
            most_requests=RequestCount(self.limits.max_batch_size),
            most_length=most_length,
        )

    @torch.inference_mode()
    def read(self, leave: int = 0) -> list[Emission]:
        """What arrived, oldest first; waits until at most ``leave`` results are under way. Frees finished rows."""
        self._collect(leave)
        emissions, self._emitted = self._emitted, []
        return emissions

    def step(self) -> list[Emission]:
        """Admit, one pass over prompts, one round, read: what arrived."""
        self.admit()
        self.prefill()
        self.run_round()
        return self.read(leave=self.limits.rounds_in_flight if self._owners.num_running else 0)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or has yet to be read."""
        return bool(self._waiting or self._owners.num_rows or self._pending or self._emitted)

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return self._owners.num_rows

    @property
    def num_prefilling(self) -> int:
        """Of those that hold a row, requests whose prompts have yet to be run to the end."""
        return len(self._owners.admitted)

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

    @torch.inference_mode()
    def close(self) -> None:
        """End what waits or runs as `cancel` does, and free the runner's graphs. May be called twice.

        What was emitted and not read, and the last emission of each request that this ends, come with one more `read`; then
        nothing is left to do. Results under way are dropped. What launches or submits anything raises `ClosedError`.
        """
        self._closed = True
        self._pending.clear()
        tracks = [*self._owners.running.tracks, *(admission.track for admission in self._owners.admitted)]
        ended = [track.request_id for track in tracks] + [waiting.request_id for waiting in self._waiting]
        self._emitted += [Emission(request_id, (), finish_reason="cancelled") for request_id in ended]
        self._waiting.clear()
        try:
            self._owners.release(*tracks)  # the KV memory may be others' as well
        finally:
            self._core.runner.close()

    # -- bookkeeping -----------------------------------------------------------------------------------------------

    def _collect(self, leave: int) -> None:
        """Take in results, oldest first, until at most ``leave`` are under way; frees the rows of finished requests."""
        while len(self._pending) > max(leave, 0):
            pending = self._pending[0]
            rows = pending.wait()  # where a user interrupts, it is still there
            self._pending.popleft()
            try:
                self._clock.arrived(pending, [row.report for row in rows])
            finally:
                taken = take_rows(pending, rows, self._owners.find)
                self._emitted += taken.emissions
                self._owners.release(*taken.ended)
                if taken.failure is not None:
                    raise taken.failure

    def _cancel_moved(self) -> None:
        """After a round that raised: cancel requests whose rows stand elsewhere than at what was read, all read now."""
        self._collect(leave=0)
        tracks = self._owners.running.tracks
        standing = self._rows.standing(len(tracks))
        lost = [each for each, at in zip(tracks, standing, strict=True) if at != (each.total, False)]
        self._emitted += [Emission(track.request_id, (), finish_reason="cancelled") for track in lost]
        self._owners.release(*lost)

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

    def _admission(self, waiting: _Waiting, row: int) -> Admission:
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
        return Admission(track, PrefillPrompt.of(request.prompt, prepared), setup)

    def _launched(self, pending: PendingResult, batch: Batch) -> None:
        for track in batch.tracks:
            track.in_flight += pending.growth
        self._pending.append(pending)
