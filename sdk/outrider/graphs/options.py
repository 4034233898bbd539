"""`RunnerOptions`: what whoever asks for a runner may say of it."""

from __future__ import annotations

from attrs import frozen

from outrider.graphs.buckets import Buckets
from outrider.types import RequestCount, Role, TokenCount

__all__ = ["RunnerOptions"]


@frozen(eq=False)
class RunnerOptions:
    """What every factory of ``outrider.runners`` is called with; a runner without graphs may leave it alone.

    ``role``: what the worker does, and so what is worth capturing. ``capture_tokens`` and ``capture_requests``: the sizes at
    which prompts and rounds are captured (`token_buckets`, `request_buckets`); ``None`` leaves them to the runner.
    """

    role: Role = Role.BOTH
    capture_tokens: Buckets[TokenCount] | None = None
    capture_requests: Buckets[RequestCount] | None = None
