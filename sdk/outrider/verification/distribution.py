"""The target's distributions at the nodes of a proposal, and draws from what verification leaves of one.

Shape suffixes: B requests, M = N + 1 nodes, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.sampling.filters import greedy_rows, keep_best_
from outrider.sampling.noise import NoiseStream, add_gumbel
from outrider.sampling.paths import NodePaths
from outrider.sampling.warp import WarpedLogits, warp_logits
from outrider.types import Proposal
from outrider.types.state import DecodeState

__all__ = ["at_node", "draw_rest", "target_distribution"]


def target_distribution(logits: Tensor, state: DecodeState, proposal: Proposal) -> WarpedLogits:
    """Warped logits whose softmax is exactly what plain decoding draws from; one-hot in greedy rows."""
    warped = warp_logits(logits, state, NodePaths.of(proposal))
    return WarpedLogits(keep_best_(warped.scores, greedy_rows(state.sampling)), warped.finite)


def at_node(values: Tensor, nodes_B: Tensor) -> Tensor:
    """``values[b, nodes_B[b]]``: ``[B, V]`` of ``values [B, M, V]``."""
    return values.gather(1, nodes_B[:, None, None].expand(-1, 1, values.shape[2])).squeeze(1)


def draw_rest(rest_BV: Tensor, whole_BV: Tensor, state: DecodeState) -> Tensor:
    """One token ``[B]`` int64 for each row from softmax(``rest_BV``), or softmax(``whole_BV``) where nothing is left.

    A draw of its own for every row and round: noise is keyed by the row's seed and the index of its root. A row of NaN
    yields some id within the vocabulary and leaves its neighbours alone. Device only, capture-safe.
    """
    empty_B1 = rest_BV.amax(dim=-1, keepdim=True) == -math.inf
    scores_BV = torch.where(empty_B1, whole_BV, rest_BV)
    index_B1 = state.lengths[:, None]
    noisy_B1V = add_gumbel(scores_BV[:, None], state.sampling.seeds, index_B1, stream=NoiseStream.RESIDUAL)
    return noisy_B1V.argmax(dim=-1).squeeze(1)
