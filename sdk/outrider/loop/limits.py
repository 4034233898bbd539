"""`EngineLimits`: the sizes that an engine was built with."""

from __future__ import annotations

from attrs import frozen

__all__ = ["EngineLimits"]


@frozen
class EngineLimits:
    """Sizes an engine was built with.

    ``context_length``: the most tokens of a sequence. ``slack``: slots past a sequence that a round may write.
    ``draft_depth``: the most tokens a round can accept before the bonus. ``max_prefill_tokens``: the most tokens of prompts
    that go through the target at once, and so for how long rounds wait for prompts.
    ``rounds_in_flight``: results the host leaves under way before it reads the oldest (0: read at once).
    """

    max_batch_size: int
    context_length: int
    slack: int
    draft_depth: int
    max_prefill_tokens: int
    max_stop_ids: int
    rounds_in_flight: int
