"""The seeded choice of the next token: the one function behind plain decoding, prefill, verification and drafting.

Shape suffixes: B requests, M nodes, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from outrider.sampling.filters import greedy_rows
from outrider.sampling.noise import add_gumbel, gumbel_noise, is_fused
from outrider.sampling.paths import NodePaths
from outrider.sampling.warp import warp_logits
from outrider.types import Proposal
from outrider.types.state import DecodeState

__all__ = ["Choice", "choose_tokens", "perturb", "row_noise"]


@frozen(eq=False)
class Choice:
    """``tokens``: ``[B, M]`` int64, the token the target takes after each node.

    ``finite``: ``[B, M]`` bool, as in `WarpedLogits`.
    """

    tokens: Tensor
    finite: Tensor


def choose_tokens(logits: Tensor, state: DecodeState, proposal: Proposal | None = None) -> Choice:
    """What plain decoding with each row's seed takes after each node, given ``logits [B, M, V]`` (left unchanged).

    With a ``proposal`` M is N + 1; without one M is 1, and the token follows ``tokens[b, : lengths[b] + 1]`` (plain
    decoding; after a prompt of P tokens with ``lengths`` P - 1). The token at absolute index i is
    argmax_v p(v) / e(v) with noise e(seed, i, v), for greedy rows argmax_v p(v), so it does not depend on drafts,
    trees, neighbours or order. Device only, static shapes, capture-safe.
    """
    sampling = state.sampling
    features = sampling.features
    if not (features.sampled or features.bias or features.penalties or features.min_tokens):
        return _best(logits)
    paths = NodePaths.root(state) if proposal is None else NodePaths.of(proposal)
    warped = warp_logits(logits, state, paths)
    return Choice(perturb(warped.scores, state, paths).argmax(dim=-1), warped.finite)


def _best(logits: Tensor) -> Choice:
    """The tokens of the largest logits, the lowest id of equal ones; where any is NaN, that is the largest."""
    if logits.device.type == "cuda":
        # There a maximum with its index takes four times as long as the index alone.
        tokens = logits.argmax(dim=-1)
        best = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    else:
        best, tokens = logits.max(dim=-1)
    return Choice(tokens, best.abs() < math.inf)


def perturb(scores: Tensor, state: DecodeState, paths: NodePaths, target_ids: Tensor | None = None) -> Tensor:
    """``scores [B, M, V]`` float32 plus the target's own noise; their argmax is the seeded choice, their order its runners-up.

    Greedy rows get no noise. A drafter that perturbs its warped logits so agrees with the target most often: noise is
    keyed by absolute index and *target* id, ``target_ids [V]`` int64 naming those of a reduced draft vocabulary.
    Returns new storage, or ``scores`` itself where no row samples. Device only, static shapes, capture-safe.
    """
    if not state.sampling.features.sampled:
        return scores
    batch, nodes, width = scores.shape
    if nodes <= paths.num_levels or is_fused(scores.device):
        index_BM, greedy = paths.indices(state), greedy_rows(state.sampling)
        return add_gumbel(scores, state.sampling.seeds, index_BM, target_ids=target_ids, greedy=greedy)
    # Nodes of one depth share their noise: hash once for each level, then hand it out.
    levels = torch.arange(paths.num_levels, device=scores.device)
    noise_BLV = row_noise(state, state.lengths[:, None] + levels + 1, width, target_ids)
    first_B1 = torch.arange(batch, device=scores.device)[:, None] * paths.num_levels
    chosen = (first_B1 + paths.depths).flatten()
    return noise_BLV.flatten(0, 1).index_select(0, chosen).view(batch, nodes, width).add_(scores)


def row_noise(state: DecodeState, indices_BM: Tensor, vocab_size: int, target_ids: Tensor | None = None) -> Tensor:
    """Gumbel noise ``[B, M, V]`` float32 of the target stream at ``indices_BM [B, M]``; 0 in greedy rows."""
    batch, nodes = indices_BM.shape
    seeds = state.sampling.seeds[:, None].expand(batch, nodes).reshape(-1)
    noise = gumbel_noise(seeds, indices_BM.reshape(-1), vocab_size, target_ids=target_ids)
    return noise.view(batch, nodes, vocab_size).masked_fill_(greedy_rows(state.sampling)[:, None, None], 0.0)
