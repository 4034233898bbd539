"""What generation gives back: completions and statistics, as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen
from torch import Tensor

from outrider.errors import OutriderError
from outrider.types.outputs import TokenLogprobs
from outrider.types.request import FinishReason

__all__ = ["BatchResult", "Completion", "Statistics", "TextDelta"]


@frozen
class Statistics:
    """How drafting went, over one or many completions.

    ``accept_lengths``: tokens per verification round, bonus included, uncut. ``num_target_passes``: prefills and rounds,
    counted per request. ``draft_depth``: the most drafted tokens a round could accept. ``seconds``: wall-clock time.
    """

    num_tokens: int
    num_target_passes: int
    accept_lengths: tuple[int, ...]
    draft_depth: int
    seconds: float

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verification round, bonus included; 1.0 where nothing was drafted, 0.0 without a round."""
        return sum(self.accept_lengths) / len(self.accept_lengths) if self.accept_lengths else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of rounds that accepted the 1st, 2nd, … drafted token."""
        rounds = len(self.accept_lengths)
        return tuple(
            sum(length > depth for length in self.accept_lengths) / rounds if rounds else 0.0
            for depth in range(1, self.draft_depth + 1)
        )

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of wall-clock time."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


@frozen
class Completion:
    """One finished prompt. ``index``: its place among the prompts given. ``error`` is set when it failed.

    ``stop``: the stop string or sequence that ended it. ``logprobs``: one per token, where asked. ``hidden_states``: where
    asked, ``[R, H]`` on the model's device; row i is the final-norm state at position i (``full``, R = prompt + tokens - 1),
    or the newest state of every pass (``last``).

    ``accept_lengths`` has one entry per round, bonus included, uncut; the first token comes from prefill, in no round.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    accept_lengths: tuple[int, ...]
    statistics: Statistics
    stop: str | tuple[int, ...] | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    hidden_states: Tensor | None = field(default=None, eq=False, repr=False)
    error: OutriderError | None = None


@frozen
class TextDelta:
    """New text of one prompt while it is generated; ``completion`` comes with its last delta."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None


@frozen
class BatchResult:
    """Completions in the order of the prompts, and how drafting went over all of them.

    ``interrupted``: generation was stopped by the user; prompts it had not finished are ``cancelled``.
    """

    completions: tuple[Completion, ...]
    statistics: Statistics
    interrupted: bool = False

    @property
    def failed(self) -> tuple[Completion, ...]:
        """The completions that carry an error."""
        return tuple(completion for completion in self.completions if completion.error is not None)


def totals(completions: Iterable[Completion], draft_depth: int, seconds: float) -> Statistics:
    """Statistics over several completions that ran within ``seconds`` of wall-clock time."""
    done: Sequence[Completion] = tuple(completions)
    return Statistics(
        num_tokens=sum(len(completion.token_ids) for completion in done),
        num_target_passes=sum(completion.statistics.num_target_passes for completion in done),
        accept_lengths=tuple(length for completion in done for length in completion.accept_lengths),
        draft_depth=draft_depth,
        seconds=seconds,
    )
