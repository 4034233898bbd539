"""`PromptProgress`: one prompt on its way to a completion."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from attrs import define, field
from torch import Tensor

from outrider.errors import InputError, OutriderError
from outrider.generation.completion import Completion, Statistics, TextDelta
from outrider.text.stops import StopMatcher
from outrider.types import CaptureHiddenMode, TokenLogprobs
from outrider.types.request import Emission, FinishReason

__all__ = ["NoText", "PromptProgress"]


class NoText:
    """The codec of a target without one: ids have no text."""

    def encode(self, text: str) -> list[int]:
        """Nothing can be encoded."""
        raise InputError(f"there is no tokenizer to encode {text!r} with; give token ids")

    def decode(self, token_ids: Sequence[int]) -> str:  # noqa: ARG002
        """No text."""
        return ""

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        """No template."""


@define(eq=False)
class PromptProgress:
    """What a prompt has given so far; emissions are cut where a stop ends it, in ids, text and all that goes with them."""

    index: int
    prompt_ids: tuple[int, ...]
    matcher: StopMatcher
    hidden_mode: CaptureHiddenMode
    draft_depth: int
    started: float = field(factory=time.perf_counter)
    token_ids: list[int] = field(factory=list[int])
    texts: list[str] = field(factory=list[str])
    accept_lengths: list[int] = field(factory=list[int])
    logprobs: list[TokenLogprobs] = field(factory=list[TokenLogprobs])
    hidden: list[Tensor] = field(factory=list[Tensor])
    passes: int = 0

    def take(self, emission: Emission) -> TextDelta:
        """What is new with ``emission``; with the completion when the request ends, by a stop or as the engine says."""
        self.passes += 1
        if emission.accept_length is not None:
            self.accept_lengths.append(emission.accept_length)
        outcome = self.matcher.feed(emission.token_ids)
        kept, text, stop = outcome.kept, outcome.text, outcome.stop
        reason = emission.finish_reason
        if stop is None and reason is not None:
            rest = self.matcher.finish()
            text, stop = text + rest.text, rest.stop
        if stop is not None and reason != "error":
            reason = "stop"
        self.token_ids += emission.token_ids[:kept]
        self.logprobs += emission.logprobs[:kept]
        self.texts.append(text)
        self._keep_hidden(emission, kept)
        completion = None if reason is None else self._completion(reason, stop, emission.error)
        return TextDelta(self.index, text, emission.token_ids[:kept], completion)

    def _keep_hidden(self, emission: Emission, kept: int) -> None:
        if emission.hidden is None:
            return
        # A prefill gives the prompt's states with its one token, a round one state for each of its tokens.
        rows = emission.hidden if emission.accept_length is None else emission.hidden[:kept]
        if self.hidden_mode is CaptureHiddenMode.LAST:
            self.hidden = [rows[-1:]]
        else:
            self.hidden.append(rows)

    def _completion(
        self, reason: FinishReason, stop: str | tuple[int, ...] | None, error: OutriderError | None
    ) -> Completion:
        statistics = Statistics(
            num_tokens=len(self.token_ids),
            num_target_passes=self.passes,
            accept_lengths=tuple(self.accept_lengths),
            draft_depth=self.draft_depth,
            seconds=time.perf_counter() - self.started,
        )
        return Completion(
            index=self.index,
            prompt_token_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            text="".join(self.texts),
            finish_reason=reason,
            accept_lengths=statistics.accept_lengths,
            statistics=statistics,
            stop=stop,
            logprobs=tuple(self.logprobs),
            hidden_states=torch.cat(self.hidden) if self.hidden else None,
            error=error,
        )
