"""What a request wants beside its tokens: log-probabilities and hidden states."""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen
from torch import Tensor

__all__ = ["TOKENS_ONLY", "CaptureHiddenMode", "OutputWants", "StepResult", "TokenLogprobs"]


class CaptureHiddenMode(IntEnum):
    """Which final-norm hidden states are handed out; a higher mode holds all of a lower one."""

    NULL = 0
    """None."""
    LAST = 1
    """The one from which the newest token was chosen."""
    FULL = 2
    """Those of every prompt position and of every generated token but the last."""


@frozen
class OutputWants:
    """``logprobs``: ``None`` for none, n ≥ 0 for the chosen token's and the n most probable ones'. ``hidden``: see the mode.

    Known on the host; what nobody wants costs nothing.
    """

    logprobs: int | None = None
    hidden: CaptureHiddenMode = CaptureHiddenMode.NULL

    def __or__(self, other: OutputWants) -> OutputWants:
        logprobs = self.logprobs
        if other.logprobs is not None:
            logprobs = max(other.logprobs, -1 if logprobs is None else logprobs)
        return OutputWants(logprobs, max(self.hidden, other.hidden))


TOKENS_ONLY = OutputWants()
"""Nothing beside the tokens."""


@frozen(eq=False)
class StepResult:
    """What a prefill or a round gives B rows, on the device.

    - ``packed``: ``[B, K + 4]`` int64 (`outrider.loop.advance`).
    - ``logprobs``: ``[B, K + 1, 1 + n]`` float32, of the chosen token and of the n most probable ones; or ``None``.
    - ``top_ids``: ``[B, K + 1, n]`` int64 ids of the latter; ``None`` with ``logprobs``.
    - ``hidden``: per row ``[R, H]``; in a round its row d is the state from which token d was chosen, in a prefill the
      rows are the prompt's (FULL) or only its last (LAST); ``None`` where nobody wants them.
    """

    packed: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None

    def first(self, count: int) -> StepResult:
        """The same of the first ``count`` rows; views."""
        if count == self.packed.shape[0]:
            return self
        return StepResult(
            self.packed[:count],
            None if self.logprobs is None else self.logprobs[:count],
            None if self.top_ids is None else self.top_ids[:count],
            None if self.hidden is None else self.hidden[:count],
        )


@frozen
class TokenLogprobs:
    """Log-probabilities (nats) under the target's own distribution, before any sampling setting.

    ``chosen``: of the emitted token. ``top``: (id, log-probability) of the most probable tokens, best first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
