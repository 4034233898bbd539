"""Capturing before the first request: every size the runner names is run once, on rows that stand idle or empty media.

Nothing but running can tell what a round captures: its draft steps, masks and plans are the drafter's and the backend's own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from attrs import evolve

from outrider.graphs import BufferSet, declared_eager, length_buckets
from outrider.interfaces import CaptureProgress, MediaBody, RoundStep
from outrider.loop.capture_sizes import CaptureSize, MediaSize, PassSize, PromptSize, RoundSize
from outrider.loop.core import DecodeCore
from outrider.loop.host_rounds import count_host_round, idle_proposal
from outrider.loop.limits import EngineLimits
from outrider.loop.prefill import prefill
from outrider.loop.prompts import PrefillPrompt, spans_of
from outrider.loop.round import nodes_of, verify
from outrider.loop.rows import RowStore
from outrider.types import (
    CaptureSummary,
    DispatchReport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RequestCount,
    RoundShape,
    SamplingFeatures,
    SamplingParams,
    Unserved,
)
from outrider.types.outputs import TOKENS_ONLY

__all__ = ["Capture"]

_ATTEMPTS = 3
"""The first run of a round is its warm-up, the second captures it, and once more where that failed and is tried again."""

_EAGER = "eager"


class Capture:
    """Runs every size of one engine, which must be idle.

    Idle rows hold no pages: what they write goes to the trash page, what they read is the null page, and they emit nothing.
    So neither KV memory nor what the drafter keeps of a request is touched.
    """

    def __init__(self, core: DecodeCore, rows: RowStore, limits: EngineLimits, step: RoundStep) -> None:
        """``step``: the engine's round over its rows."""
        # What a drafter keeps on the host would keep what it is shown here.
        self._core = evolve(core, drafts=False) if core.drafter.runs_on_host else core
        self._rows = rows
        self._limits = limits
        self._step = step

    def run(self, progress: CaptureProgress | None) -> CaptureSummary:
        """Run all sizes, the largest first, so that smaller ones find room in the memory of larger ones. Synchronises.

        The runner's counts of what ran and what it refused are afterwards as before.
        """
        runner = self._core.runner
        report, named = runner.report, runner.sizes
        sizes = self._sizes(named.media, named.tokens, named.requests)
        left_out = len(self._sizes(named.media_left_out, named.tokens_left_out, named.requests_left_out))
        unserved = self._declared(named.media)
        first = len(report.captured)
        began = time.perf_counter()
        done = 0
        with _counts_kept(report), runner.capturing():
            for done, size in enumerate(sizes, start=1):
                before = len(report.captured)
                lost = self._run_size(size, report)
                for phase, refused in lost:
                    key = (phase, refused.by, refused.reason)
                    so_far = unserved[key].sizes if key in unserved else 0
                    unserved[key] = Unserved(phase, refused, so_far + 1)
                if progress is not None:
                    progress(done, len(sizes), tuple(report.captured[before:]))
                if any(refused.reason is RefusalReason.DEVICE for _, refused in lost):
                    break  # the device has no graphs: no other size would fare better
        return CaptureSummary(
            runner=report.runner,
            role=named.role,
            sizes=done,
            captured=tuple(report.captured[first:]),
            unserved=tuple(unserved.values()),
            left_out=left_out,
            seconds=time.perf_counter() - began,
        )

    def _sizes(self, media: bool, tokens: Sequence[int], requests: Sequence[int]) -> list[CaptureSize]:
        return [*self._media(media), *self._prompts(tokens), *self._rounds(requests)]

    @property
    def _bodies(self) -> tuple[MediaBody, ...]:
        media = self._core.target.media
        return () if media is None else media.bodies

    def _media(self, captured: bool) -> list[MediaSize]:
        """What bodies of media are run on, at each of their counts."""
        if not captured:
            return []
        return [
            MediaSize(body, items)
            for body in self._bodies
            for items in reversed(body.counts)
            if body.eager_because is None
        ]

    def _declared(self, captured: bool) -> dict[tuple[Phase, str, RefusalReason], Unserved]:
        """Bodies of media that say themselves that they cannot be captured; they are not run."""
        reasons = [body.eager_because for body in self._bodies if captured]
        said = [declared_eager(reason) for reason in reasons if reason is not None]
        return {(Phase.MEDIA_ENCODE, each.by, each.reason): Unserved(Phase.MEDIA_ENCODE, each) for each in said}

    def _prompts(self, counts: Sequence[int]) -> list[PromptSize]:
        """What a pass over prompts can hold, at each of ``counts``."""
        most = min(self._limits.max_prefill_tokens, self._limits.max_batch_size * (self._limits.context_length - 1))
        return [PromptSize(tokens) for tokens in sorted({min(count, most) for count in counts}, reverse=True)]

    def _rounds(self, counts: Sequence[int]) -> list[RoundSize] | list[PassSize]:
        requests = sorted({min(count, self._limits.max_batch_size) for count in counts}, reverse=True)
        sizes = [(count, length) for count in requests for length in self._lengths()]
        if self._core.drafter.runs_on_host:
            return [PassSize(*size) for size in sizes]
        return [RoundSize(*size, sampled) for size in sizes for sampled in (False, True)]

    def _lengths(self) -> list[int]:
        """Bounds of the sequences, descending: such that whole rounds, and the phases in them, which see what a round
        writes past a sequence as well, come to every bucket of lengths.
        """
        context = self._limits.context_length
        if self._core.plans.capabilities.any_length:
            return [context]
        short = {max(length - self._limits.slack, 1) for length in length_buckets(context)}
        return sorted({*short, context}, reverse=True)

    def _run_size(self, size: CaptureSize, report: DispatchReport) -> list[tuple[Phase, Refused]]:
        """Run it; what no graph serves at this size."""
        try:
            match size:
                case MediaSize(body, items):
                    _clear(report)
                    empty = BufferSet(body.inputs, PhaseShape.of_media(items), self._core.spec.device)
                    self._core.runner.run_media(body, empty.tensors)
                case PromptSize(tokens):
                    _clear(report)
                    self._run_prompts(tokens)
                case RoundSize(requests, length, sampled):
                    self._run_rounds(requests, length, sampled, report)
                case PassSize(requests, length):
                    self._run_pass(requests, length, report)
            self._synchronize()
        except torch.OutOfMemoryError as error:
            remedy = "lower max_batch_size or max_prefill_tokens, or give the KV memory fewer pages"
            return [(size.phase, Refused(RefusalReason.MEMORY, f"{size}: {error}", remedy))]
        # A step that another one further down makes good is no loss; a round that is not one graph is one.
        lost = {phase for phase, where in report.ran if where == _EAGER} | {Phase.ROUND}
        return [(phase, refused) for (phase, *_), refused in report.explained.items() if phase in lost]

    def _run_prompts(self, tokens: int) -> None:
        most = self._limits.context_length - 1
        sizes = [most] * (tokens // most) + [tokens % most]
        prompts = [PrefillPrompt((0,) * size) for size in sizes if size]
        prefill(self._core, self._rows, 0, prompts, spans_of(prompts, 0, tokens))

    def _run_rounds(self, requests: int, length: int, sampled: bool, report: DispatchReport) -> None:
        """The same round until it is served; ``report`` then tells of the last one."""
        shape = self._shape(requests, length, sampled)
        try:
            if sampled:
                self._rows.sampling.set_row(0, SamplingParams(temperature=1.0), prompt_length=1)
            for _ in range(_ATTEMPTS):
                _clear(report)
                self._core.runner.run_round(shape, self._step)
                if not report.ran[Phase.ROUND, _EAGER]:
                    break
        finally:
            self._rows.clear_row(0)

    def _run_pass(self, requests: int, length: int, report: DispatchReport) -> None:
        _clear(report)
        if self._core.runner.sizes.rounds:
            count_host_round(report, self._shape(requests, length, sampled=False), constrained=0)
        state = self._rows.view(0, requests, length)
        proposal = idle_proposal(self._core.drafter.shape, requests, self._core.spec.device)
        verify(self._core, state, proposal, nodes_of(self._core, state, proposal))

    def _shape(self, requests: int, length: int, sampled: bool) -> RoundShape:
        return RoundShape(
            RequestCount(requests),
            length,
            self._core.drafter.shape,
            SamplingFeatures(sampled=sampled),
            TOKENS_ONLY,
            most_requests=RequestCount(self._limits.max_batch_size),
            most_length=self._limits.context_length,
        )

    def _synchronize(self) -> None:
        device = self._core.spec.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


@contextmanager
def _counts_kept(report: DispatchReport) -> Generator[None]:
    """Whatever happens inside, the counts of ``report`` are those of requests alone."""
    ran, refused, explained = Counter(report.ran), Counter(report.refused), dict(report.explained)
    try:
        yield
    finally:
        _clear(report)
        report.ran.update(ran)
        report.refused.update(refused)
        report.explained.update(explained)


def _clear(report: DispatchReport) -> None:
    report.ran.clear()
    report.refused.clear()
    report.explained.clear()
