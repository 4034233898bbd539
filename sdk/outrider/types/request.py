"""A request as the loop takes it, and what it gives back: token ids, no text."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen
from torch import Tensor

from outrider.errors import OutriderError
from outrider.types.counts import RequestId
from outrider.types.outputs import TOKENS_ONLY, OutputWants, TokenLogprobs
from outrider.types.sampling import SamplingParams

__all__ = ["Emission", "FinishReason", "Request"]

FinishReason = Literal["eos", "stop", "length", "context", "error", "cancelled"]
"""``eos``: an end-of-sequence id; ``stop``: a stop string or sequence; ``length``: ``max_new_tokens``; ``context``: the
context of the target is full; ``error``: see the error; ``cancelled``: by the caller."""


@frozen
class Request:
    """One prompt to continue.

    ``eos_ids`` ``None`` means the target's own. ``draft_cap`` limits the drafted tokens of a round for this request
    (0: none; ``None``: as the engine). ``wants``: outputs beside the tokens. Checked at `Engine.submit`.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 128
    sampling: SamplingParams = field(factory=SamplingParams)
    eos_ids: tuple[int, ...] | None = None
    draft_cap: int | None = None
    wants: OutputWants = TOKENS_ONLY


@frozen
class Emission:
    """What one prefill or round gave one request.

    ``token_ids`` are final. ``accept_length``: tokens the round accepted, bonus included, uncut; ``None`` for prefill and
    for rounds that verified nothing. ``finish_reason`` and ``error`` come with the last emission of a request.
    ``logprobs``: one per token, where the request wants them. ``hidden``: ``[R, H]`` on the device, final-norm states as
    `CaptureHiddenMode` says: those the tokens were chosen from, in a prefill those of the prompt.
    """

    request_id: RequestId
    token_ids: tuple[int, ...]
    accept_length: int | None = None
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    hidden: Tensor | None = field(default=None, eq=False, repr=False)
    error: OutriderError | None = None
