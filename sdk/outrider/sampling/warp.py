"""Logits as a request wants them: bias, penalties and minimum length, then temperature and filters.

Shape suffixes: B requests, M nodes, V vocabulary, E stop ids.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from outrider.sampling.filters import filter_scores_
from outrider.sampling.paths import NodePaths
from outrider.sampling.penalties import penalise_
from outrider.types.state import DecodeState

__all__ = ["WarpedLogits", "warp_logits"]


@frozen(eq=False)
class WarpedLogits:
    """Unnormalised log-probabilities of the next token, in storage of their own.

    - ``scores``: ``[B, M, V]`` float32, -inf for tokens that cannot be chosen. Rows that `greedy_rows` names are to be
      read by their maximum, whatever the rest says.
    - ``finite``: ``[B, M]`` bool, false where the logits hold NaN or +inf, or no token is left to choose from.
    """

    scores: Tensor
    finite: Tensor


def warp_logits(logits: Tensor, state: DecodeState, paths: NodePaths) -> WarpedLogits:
    """``logits [B, M, V]`` (any float dtype, left unchanged) after each row's sampling parameters.

    In transformers' order: bias (-inf for banned, and for all but allowed tokens), repetition, frequency and presence
    penalty, stop ids barred below the minimum length; for sampled rows then temperature, top-k, top-p, min-p. What
    `SamplingFeatures` says no row uses is skipped. Each node has the history of its own path. Device only, static
    shapes, capture-safe.
    """
    sampling = state.sampling
    features = sampling.features
    scores = logits.to(torch.float32, copy=True)
    if features.bias and sampling.bias is not None:
        scores.add_(sampling.bias[:, None])
    if features.penalties:
        penalise_(scores, state, paths)
    if features.min_tokens:
        _bar_stops_(scores, state, paths)
    finite = scores.amax(dim=-1).isfinite()
    if features.sampled:
        scores = filter_scores_(scores, sampling)
    return WarpedLogits(scores, finite)


def _bar_stops_(scores_BMV: Tensor, state: DecodeState, paths: NodePaths) -> None:
    """Put stop ids at -inf in place where the token would come before the row's minimum length."""
    vocab_size = scores_BMV.shape[2]
    known_BE = (state.stop_ids >= 0) & (state.stop_ids < vocab_size)
    early_BM = paths.indices(state) < state.sampling.min_totals[:, None]
    barred_BME = early_BM[:, :, None] & known_BE[:, None]
    # Adding 0 or -inf, unlike writing, gives the same result in any order where padding repeats an id.
    columns_BME = torch.where(known_BE, state.stop_ids, 0)[:, None].expand_as(barred_BME)
    scores_BMV.scatter_add_(2, columns_BME, torch.where(barred_BME, -math.inf, 0.0))
