"""`RunnerOptions`: what whoever asks for a runner may say of it. `GraphOptions`, `Steps`: what one of graphs captures."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from outrider.graphs.buckets import Buckets
from outrider.types import CaptureHiddenMode, Phase, RequestCount, Role, TokenCount

__all__ = ["HIDDEN_MODES", "GraphOptions", "RunnerOptions", "Steps"]

HIDDEN_MODES: Mapping[Phase, CaptureHiddenMode] = {Phase.DRAFT_EXTEND: CaptureHiddenMode.LAST}
"""Which hidden states graphs give by default: of the draft's extension the newest of each request, else all."""


@frozen(eq=False)
class RunnerOptions:
    """What every factory of ``outrider.runners`` is called with; a runner without graphs may leave it alone.

    ``role``: what the worker does, and so what is worth capturing. ``capture_tokens`` and ``capture_requests``: the sizes at
    which prompts and rounds are captured (`token_buckets`, `request_buckets`); ``None`` leaves them to the runner.
    ``on_demand``: capture when a graph is first needed; else only what `GraphRunner.capture` was told, or what was run within
    `GraphRunner.capturing` (as `Engine.capture` does), is served.
    """

    role: Role = Role.BOTH
    capture_tokens: Buckets[TokenCount] | None = None
    capture_requests: Buckets[RequestCount] | None = None
    on_demand: bool = True


@frozen
class Steps:
    """Which kinds of graphs a runner tries for rounds and what is in them, in this order, before it runs eagerly.

    Media are captured by every runner of graphs: they attend to nothing that one could not hold.
    """

    rounds: bool = True
    phases: bool = True
    breakable: bool = True


@frozen(eq=False)
class GraphOptions:
    """What a runner captures.

    ``requests`` and ``tokens``: buckets, by default `request_buckets` and `token_buckets`. ``on_demand``: as in
    `RunnerOptions`. ``hidden_modes``: by phase, FULL where none is named. ``poison``: padding holds NaN and huge numbers, to
    prove that nothing reads it.
    """

    requests: Buckets[RequestCount] | None = None
    tokens: Buckets[TokenCount] | None = None
    role: Role = Role.BOTH
    on_demand: bool = True
    hidden_modes: Mapping[Phase, CaptureHiddenMode] = HIDDEN_MODES
    poison: bool = False

    @classmethod
    def of(cls, options: RunnerOptions) -> GraphOptions:
        """What was asked for, and the defaults for the rest."""
        return cls(
            requests=options.capture_requests,
            tokens=options.capture_tokens,
            role=options.role,
            on_demand=options.on_demand,
        )
