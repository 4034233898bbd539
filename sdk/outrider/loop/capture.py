"""Capturing before the first request: every size the runner names is run once, on rows that stand idle.

Nothing but running can tell what a round captures: its draft steps, masks and plans are the drafter's and the backend's own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from attrs import frozen

from outrider.graphs import length_buckets
from outrider.interfaces import CaptureProgress, RoundStep
from outrider.loop.core import DecodeCore
from outrider.loop.limits import EngineLimits
from outrider.loop.prefill import PrefillPrompt, prefill
from outrider.loop.rows import RowStore
from outrider.types import (
    CaptureSummary,
    DispatchReport,
    Phase,
    RefusalReason,
    Refused,
    RequestCount,
    RoundShape,
    SamplingFeatures,
    SamplingParams,
    Unserved,
)
from outrider.types.counts import counted
from outrider.types.outputs import TOKENS_ONLY

__all__ = ["Capture"]

_ATTEMPTS = 3
"""The first run of a round is its warm-up, the second captures it, and once more where that failed and is tried again."""

_EAGER = "eager"


@frozen
class _PromptSize:
    """Prompts of so many ``tokens`` together."""

    tokens: int

    def __str__(self) -> str:
        return f"prompts of {counted(self.tokens, 'token')}"


@frozen
class _RoundSize:
    """Rounds of so many ``requests``, of sequences of up to ``length`` tokens."""

    requests: int
    length: int
    sampled: bool

    def __str__(self) -> str:
        how = "sampled" if self.sampled else "greedy"
        return f"{how} rounds of {counted(self.requests, 'request')} of up to {counted(self.length, 'token')}"


class Capture:
    """Runs every size of one engine, which must be idle.

    Idle rows hold no pages: what they write goes to the trash page, what they read is the null page, and they emit nothing.
    So neither KV memory nor what the drafter keeps of a request is touched.
    """

    def __init__(self, core: DecodeCore, rows: RowStore, limits: EngineLimits, step: RoundStep) -> None:
        """``step``: the engine's round over its rows."""
        self._core = core
        self._rows = rows
        self._limits = limits
        self._step = step

    def run(self, progress: CaptureProgress | None) -> CaptureSummary:
        """Run all sizes, the largest first, so that smaller ones find room in the memory of larger ones. Synchronises.

        The runner's counts of what ran and what it refused are afterwards as before.
        """
        runner = self._core.runner
        report, named = runner.report, runner.sizes
        sizes: list[_PromptSize | _RoundSize] = [*self._prompts(named.tokens), *self._rounds(named.requests)]
        left_out = len(self._prompts(named.tokens_left_out)) + len(self._rounds(named.requests_left_out))
        unserved: dict[tuple[Phase, str, RefusalReason], Unserved] = {}
        first = len(report.captured)
        began = time.perf_counter()
        done = 0
        with _counts_kept(report):
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

    def _prompts(self, counts: Sequence[int]) -> list[_PromptSize]:
        """What a pass over prompts can hold, at each of ``counts``."""
        most = min(self._core.max_prefill_tokens, self._limits.max_batch_size * (self._limits.context_length - 1))
        return [_PromptSize(tokens) for tokens in sorted({min(count, most) for count in counts}, reverse=True)]

    def _rounds(self, counts: Sequence[int]) -> list[_RoundSize]:
        most = self._limits.max_batch_size
        return [
            _RoundSize(requests, length, sampled)
            for requests in sorted({min(count, most) for count in counts}, reverse=True)
            for length in self._lengths()
            for sampled in (False, True)
        ]

    def _lengths(self) -> list[int]:
        """Bounds of the sequences, descending: such that whole rounds, and the phases in them, which see what a round
        writes past a sequence as well, come to every bucket of lengths.
        """
        context = self._limits.context_length
        if self._core.plans.capabilities.any_length:
            return [context]
        short = {max(length - self._limits.slack, 1) for length in length_buckets(context)}
        return sorted({*short, context}, reverse=True)

    def _run_size(self, size: _PromptSize | _RoundSize, report: DispatchReport) -> list[tuple[Phase, Refused]]:
        """Run it; what no graph serves at this size."""
        try:
            match size:
                case _PromptSize(tokens):
                    _clear(report)
                    self._run_prompts(tokens)
                case _RoundSize(requests, length, sampled):
                    self._run_rounds(requests, length, sampled, report)
            self._synchronize()
        except torch.OutOfMemoryError as error:
            phase = Phase.TARGET_PREFILL if isinstance(size, _PromptSize) else Phase.ROUND
            remedy = "lower max_batch_size or max_prefill_tokens, or give the KV memory fewer pages"
            return [(phase, Refused(RefusalReason.MEMORY, f"{size}: {error}", remedy))]
        # A step that another one further down makes good is no loss; a round that is not one graph is one.
        lost = {phase for phase, where in report.ran if where == _EAGER} | {Phase.ROUND}
        return [(phase, refused) for (phase, *_), refused in report.explained.items() if phase in lost]

    def _run_prompts(self, tokens: int) -> None:
        most = self._limits.context_length - 1
        sizes = [most] * (tokens // most) + [tokens % most]
        prompts = [PrefillPrompt((0,) * size) for size in sizes if size]
        prefill(self._core, self._rows, 0, prompts)

    def _run_rounds(self, requests: int, length: int, sampled: bool, report: DispatchReport) -> None:
        """The same round until it is served; ``report`` then tells of the last one."""
        shape = RoundShape(
            RequestCount(requests),
            length,
            self._core.drafter.shape,
            SamplingFeatures(sampled=sampled),
            TOKENS_ONLY,
            most_requests=RequestCount(self._limits.max_batch_size),
            most_length=self._limits.context_length,
        )
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
