"""Attention written out, for what `scaled_dot_product_attention` lacks: soft caps and sinks."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types import AttentionSpec

__all__ = ["attend_exactly", "fold_sinks", "masked_score"]


def masked_score(dtype: torch.dtype) -> float:
    """What is added to the score of a hidden key.

    Finite, so that a row that sees nothing (padding) stays finite too; so low that beside any visible key the weight
    is exactly 0; half of the least value, so that adding a score cannot overflow.
    """
    return torch.finfo(dtype).min / 2


def fold_sinks(spec: AttentionSpec, queries: int) -> Tensor | None:
    """Sinks as ``[1, num_kv_heads, G · queries, 1]`` float32 for queries folded as in `attend_exactly`."""
    if spec.sinks is None:
        return None
    groups = spec.num_heads // spec.num_kv_heads
    sinks = spec.sinks.float().view(spec.num_kv_heads, groups, 1)
    return sinks.expand(-1, -1, queries).reshape(1, spec.num_kv_heads, groups * queries, 1)


def attend_exactly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, spec: AttentionSpec, sinks: Tensor | None) -> Tensor:
    """Attention output ``[B, H, R, D]`` in the dtype of ``q``, computed in float32.

    ``q [B, H, R, D]`` holds H kv heads, each with R = G · Q rows of the query heads that share it; ``k`` and ``v``
    ``[B, H, S, D]``; ``mask`` additive, broadcastable to ``[B, H, R, S]``; ``sinks`` from `fold_sinks`. Device only,
    capture-safe.

    Source: soft cap, Gemma 2 (arXiv:2408.00118, section 2); sinks, gpt-oss (arXiv:2508.10925, section 2.2): a logit per
    head joins the softmax and attends to nothing.
    """
    scores = torch.matmul(q.float(), k.float().transpose(2, 3)).mul_(spec.scale)
    if spec.soft_cap is not None:
        scores = scores.div_(spec.soft_cap).tanh_().mul_(spec.soft_cap)
    scores += mask
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        peak = torch.maximum(scores.amax(dim=-1, keepdim=True), sinks)
        weights = scores.sub_(peak).exp_()
        weights /= weights.sum(dim=-1, keepdim=True) + torch.exp(sinks - peak)
    return torch.matmul(weights, v.float()).to(q.dtype)
