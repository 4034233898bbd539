"""Temperature, top-k, top-p and min-p with parameters of their own for every row.

Shape suffixes: B requests, M nodes, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.types import SamplingState

__all__ = ["filter_scores_", "greedy_rows", "keep_best_"]

_COLDEST = 1e-30
"""Dividing by less could overflow float32; at this temperature every choice is the greedy one already."""


def greedy_rows(sampling: SamplingState) -> Tensor:
    """Rows ``[B]`` bool whose most probable token is always taken: temperature 0, or top-k 1 at any temperature.

    Among equal logits the lowest id is taken. (transformers' top-k keeps every token that ties with the k-th and so
    samples between two best tokens; greedy decoding does not.)
    """
    return (sampling.temperature == 0) | (sampling.top_k == 1)


def filter_scores_(scores_BMV: Tensor, sampling: SamplingState) -> Tensor:
    """``scores_BMV [B, M, V]`` float32 divided by the temperature, filtered tokens at -inf; in place where it can be.

    In transformers' order: temperature, top-k, top-p, min-p, each over what the ones before have left. Greedy rows
    pass unchanged. Device only, static shapes, capture-safe.

    Source: transformers ``TemperatureLogitsWarper``, ``TopKLogitsWarper``, ``TopPLogitsWarper``, ``MinPLogitsWarper``.
    """
    features = sampling.features
    greedy = greedy_rows(sampling)[:, None, None]
    temperature = sampling.temperature[:, None, None].clamp_min(_COLDEST)
    scores_BMV = scores_BMV.div_(torch.where(greedy, 1.0, temperature))
    if features.top_k or features.top_p:
        scores_BMV = _top_k_top_p(scores_BMV, sampling, greedy)
    if features.min_p:
        probs = scores_BMV.softmax(dim=-1)
        least = sampling.min_p[:, None, None].to(torch.float32) * probs.amax(dim=-1, keepdim=True)
        scores_BMV = scores_BMV.masked_fill_((probs < least) & ~greedy, -math.inf)
    return scores_BMV


def keep_best_(scores_BMV: Tensor, greedy: Tensor) -> Tensor:
    """``scores_BMV [B, M, V]`` with all but the best token at -inf where ``greedy [B]``: its softmax is one-hot."""
    best = scores_BMV.argmax(dim=-1, keepdim=True)
    others = torch.arange(scores_BMV.shape[-1], device=scores_BMV.device) != best
    return scores_BMV.masked_fill_(others & greedy[:, None, None], -math.inf)


def _top_k_top_p(scores_BMV: Tensor, sampling: SamplingState, greedy: Tensor) -> Tensor:
    vocab_size = scores_BMV.shape[-1]
    # Stable, so that which of several tied tokens falls to top-p depends on nothing but their ids.
    ordered, order = torch.sort(scores_BMV, dim=-1, stable=True)
    remove = torch.zeros_like(scores_BMV, dtype=torch.bool)
    if sampling.features.top_k:
        top_k = sampling.top_k[:, None, None]
        keep = torch.where(greedy | (top_k <= 0), vocab_size, top_k.clamp(max=vocab_size))
        kth = ordered.gather(-1, (vocab_size - keep).expand(*scores_BMV.shape[:-1], 1))
        remove = scores_BMV < kth
        ordered = ordered.masked_fill(ordered < kth, -math.inf)
    if sampling.features.top_p:
        top_p = sampling.top_p[:, None, None].to(torch.float64)
        tail = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1 - top_p).to(torch.float32)
        tail[..., -1] = False
        tail &= (top_p < 1) & ~greedy
        remove = remove | torch.zeros_like(tail).scatter_(-1, order, tail)
    return scores_BMV.masked_fill_(remove, -math.inf)
