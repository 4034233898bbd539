"""Warped draft logits, coupled drafts, and drafts sampled without replacement.

Shape suffixes: B requests, W nodes that are expanded, D draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from outrider.sampling.choice import perturb
from outrider.sampling.filters import greedy_rows, keep_best_
from outrider.sampling.noise import NoiseStream, add_gumbel
from outrider.sampling.paths import NodePaths
from outrider.sampling.warp import warp_logits
from outrider.types import DraftVocab
from outrider.types.state import DecodeState

__all__ = ["DrawnChildren", "coupled_scores", "draw_children", "warp_draft_logits"]


def warp_draft_logits(logits: Tensor, state: DecodeState, paths: NodePaths, vocab: DraftVocab) -> Tensor:
    """Draft logits ``[B, W, D]`` after the request's sampling parameters, as the target's will be; float32, new storage.

    ``paths`` holds the W nodes that are expanded (their depths, and the tokens drafted so far as target ids). Bias,
    penalties and stop ids are found by target id. Device only, static shapes, capture-safe.
    """
    if vocab.target_ids is None:
        return warp_logits(logits, state, paths).scores
    spread = vocab.scatter(logits.to(torch.float32), -math.inf)
    return warp_logits(spread, state, paths).scores.index_select(-1, vocab.target_ids)


def coupled_scores(warped: Tensor, state: DecodeState, paths: NodePaths, vocab: DraftVocab) -> Tensor:
    """``warped [B, W, D]`` with the target's own noise added: its argmax is the draft most likely to be accepted.

    A proposal made so is one-hot (`Proposal.distribution` is ``None``). Greedy rows come back unchanged.

    Source: Gumbel coupling, argmax_v q(v) / e(v); agrees with argmax_v p(v) / e(v) with probability at least
    (1 - TV) / (1 + TV).
    """
    return perturb(warped, state, paths, vocab.target_ids)


@frozen(eq=False)
class DrawnChildren:
    """Children drawn without replacement, in the order in which they are to stand in the proposal and be tried.

    - ``draft_ids`` and ``target_ids``: ``[B, W, k]`` int64.
    - ``probs``: ``[B, W, V]`` float32 on the full target vocabulary: what every child was drawn from, before any was
      taken out; as `outrider.types.DraftDistribution` wants it.
    """

    draft_ids: Tensor
    target_ids: Tensor
    probs: Tensor


def draw_children(warped: Tensor, state: DecodeState, vocab: DraftVocab, *, level: int, count: int) -> DrawnChildren:
    """``count`` children for each of W nodes of depth ``level``, drawn from softmax(``warped [B, W, D]``).

    Greedy rows take their best tokens, and their distribution is one-hot. Where fewer than ``count`` tokens have any
    probability, the rest are tokens of probability 0. Noise is keyed by (seed, index of the root, level, target id), so
    nodes of one level share it; whatever is kept in the proposal must not depend on what was drawn. Device only, static
    shapes, capture-safe.

    Source: Gumbel top-k, Kool et al. 2019 (arXiv 1903.06059).
    """
    greedy = greedy_rows(state.sampling)
    keys = add_gumbel(
        warped,
        state.sampling.seeds,
        state.lengths[:, None],
        stream=NoiseStream.DRAFT,
        step=level,
        target_ids=vocab.target_ids,
        greedy=greedy,
    )
    draft_ids = keys.topk(count, dim=-1).indices
    probs = keep_best_(warped.clone(), greedy).softmax(dim=-1)
    return DrawnChildren(draft_ids, vocab.to_target(draft_ids), vocab.scatter(probs, 0.0))
