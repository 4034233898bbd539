"""Log-probabilities and hidden states of the tokens a step emits.

Shape suffixes: B requests, M nodes of the proposal, K its depth, V vocabulary, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types import Acceptance, Proposal
from outrider.types.outputs import CaptureHiddenMode, OutputWants, StepResult

__all__ = ["round_result", "token_logprobs"]


def round_result(
    packed: Tensor,
    wants: OutputWants,
    proposal: Proposal,
    acceptance: Acceptance,
    logits_BMV: Tensor,
    hidden_BMH: Tensor,
) -> StepResult:
    """``packed`` with the log-probabilities and hidden states of the accepted path, as ``wants`` says.

    The logits are the target's own, before any sampling setting. Device only, static shapes, capture-safe.
    """
    logprobs = top_ids = None
    if wants.logprobs is not None:
        logprobs, top_ids = token_logprobs(
            _on_path(proposal, acceptance, logits_BMV), acceptance.tokens, wants.logprobs
        )
    hidden = None
    if wants.hidden > CaptureHiddenMode.NULL:
        hidden = tuple(_on_path(proposal, acceptance, hidden_BMH).clone().unbind(0))
    return StepResult(packed, logprobs, top_ids, hidden)


def token_logprobs(logits_BKV: Tensor, tokens_BK: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities ``[B, K, 1 + count]`` of ``tokens_BK`` and of the ``count`` best, and the latter's ids."""
    scores = logits_BKV.float().log_softmax(dim=-1)
    chosen = scores.gather(2, tokens_BK[:, :, None])
    best = scores.topk(min(count, scores.shape[2]), dim=-1)
    return torch.cat([chosen, best.values], dim=2), best.indices


def _on_path(proposal: Proposal, acceptance: Acceptance, values_BMX: Tensor) -> Tensor:
    """Rows of the accepted path, ``[B, K + 1, X]``."""
    if proposal.shape.is_chain:
        return values_BMX
    index = acceptance.path[:, :, None].expand(-1, -1, values_BMX.shape[2])
    return values_BMX.gather(1, index)
