"""Runs prompts for a command: what to do with each delta is the caller's, Ctrl-C and failures are seen to here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve, frozen

from outrider.cli.terminal import Interrupt
from outrider.errors import ConformanceError
from outrider.generation.completion import Completion, Statistics, TextDelta, totals
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.generation.settings import RequestSettings

__all__ = ["Run", "check_same", "run_prompts", "warm_up"]

_WARM_UP_TOKENS = 8


@frozen
class Run:
    """What became of the prompts: the completions of those that ended, by index, finished or failed."""

    completions: Mapping[int, Completion]
    statistics: Statistics
    interrupted: bool

    @property
    def failed(self) -> tuple[int, ...]:
        """Indices of the prompts that failed."""
        return tuple(index for index, completion in self.completions.items() if completion.error is not None)


def run_prompts(
    model: SpeculativeModel,
    prompts: Sequence[Prompt],
    settings: RequestSettings,
    on_delta: Callable[[TextDelta], None],
    keep_going: bool,
) -> Run:
    """Run ``prompts`` and hand every delta to ``on_delta``; end early at Ctrl-C, or at a failure unless ``keep_going``."""
    done: dict[int, Completion] = {}
    interrupted = False
    started = time.perf_counter()
    with Interrupt() as interrupt:
        try:
            for delta in model.stream_batch(prompts, settings=settings, raise_errors=False):
                if delta.completion is not None:
                    done[delta.index] = delta.completion
                on_delta(delta)
                failed = delta.completion is not None and delta.completion.error is not None
                if interrupt.requested or (failed and not keep_going):
                    break
        except KeyboardInterrupt:
            interrupted = True
    statistics = totals(done.values(), model.engine.draft_depth, time.perf_counter() - started)
    return Run(done, statistics, interrupted or interrupt.requested)


def warm_up(model: SpeculativeModel, prompt: Prompt, settings: RequestSettings) -> None:
    """Decode a few tokens, so that one-time costs (kernels, graphs, memory) fall on no side of a comparison."""
    wanted = settings if prompt.settings is None else prompt.settings
    few = wanted.override({"max_new_tokens": min(_WARM_UP_TOKENS, wanted.max_new_tokens)})
    for _ in model.stream_batch([evolve(prompt, settings=few)], raise_errors=False):
        pass


def check_same(drafted: Run, plain: Run, indices: Sequence[int], comparable: Collection[int]) -> int:
    """Compare two runs of the same prompts: how many tokens both gave. ``indices``: what messages call the prompts.

    Of those whose index in the runs is not in ``comparable`` nothing is asked: their verifier does not keep the tokens.

    Raises:
        ConformanceError: some prompt got other tokens; names the first place.
    """
    num_same = 0
    for index, completion in drafted.completions.items():
        if index not in comparable:
            continue
        other = plain.completions[index]
        ours, theirs = completion.token_ids, other.token_ids
        # One that fails both ways (a prompt too long, say) may fail after more or fewer tokens.
        if ours == theirs or (completion.error is not None and other.error is not None):
            num_same += len(ours)
            continue
        place = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        place = min(len(ours), len(theirs)) if place is None else place
        raise ConformanceError(
            f"prompt {indices[index]}: drafting gave other tokens than the target alone, from token {place} on "
            f"(drafted {_around(ours, place)}, alone {_around(theirs, place)}); low-precision kernels that round "
            "differently for other batch shapes can do this: compare once more with --dtype float32"
        )
    return num_same


def _around(token_ids: tuple[int, ...], place: int) -> str:
    return " ".join(map(str, token_ids[place : place + 4])) or "ends"
