"""Outrider as a contestant, through its public interface, text and all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks._cases import TokenIds
from benchmarks._pair import Pair
from benchmarks._race import Answer, Contestant
from outrider import SpeculativeModel
from outrider.interfaces import DrafterBuilder, GraphRunner
from outrider.types import Phase
from outrider_backends.eager import EagerRunner

__all__ = ["MAX_NEW_TOKENS", "model_contestant", "outrider_contestant", "preparations"]

MAX_NEW_TOKENS = 64


def model_contestant(name: str, model: SpeculativeModel) -> Contestant:
    """`SpeculativeModel.generate_batch`, end-of-sequence ids ignored."""
    return Contestant(name, lambda prompts: _generate(model, prompts), preparations(model))


def preparations(model: SpeculativeModel) -> Callable[[], int]:
    """How many graphs were captured up to now, and how many rounds were run directly to be captured when they come again."""
    report = model.engine.report
    return lambda: len(report.captured) + report.ran[Phase.ROUND, "eager"] if report.captured else 0


def outrider_contestant(
    name: str, pair: Pair, builder: DrafterBuilder | None, runner: Callable[[], GraphRunner] = EagerRunner
) -> Contestant:
    """The embedded pair with drafts by ``builder``, or plain decoding."""
    return model_contestant(name, pair.model(builder, runner=runner))


def _generate(model: SpeculativeModel, prompts: Sequence[TokenIds]) -> Answer:
    completions = model.generate_batch(prompts, max_new_tokens=MAX_NEW_TOKENS, ignore_eos=True).completions
    return Answer(
        token_ids=tuple(completion.token_ids for completion in completions),
        # Requests that start together go through the same passes; the longest is there for all of them.
        num_passes=max(completion.statistics.num_target_passes for completion in completions),
        accept_lengths=tuple(length for completion in completions for length in completion.accept_lengths),
    )
