"""How a drafter turns draft logits into drafted tokens.

Shape suffixes: B requests, W nodes that are expanded, D draft vocabulary, N tokens drafted so far.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from outrider.sampling import NodePaths, coupled_scores, warp_draft_logits
from outrider.types import DraftVocab
from outrider.types.state import DecodeState

__all__ = ["ProposalMode", "chain_paths", "draft_scores", "level_paths"]


class ProposalMode(Enum):
    """How drafted tokens are chosen for requests that sample; greedy requests always draft the most probable ones."""

    GREEDY = "greedy"
    """The most probable tokens of the draft."""
    COUPLED = "coupled"
    """Chosen with the target's own noise: most likely to be the very tokens the target samples."""
    SAMPLED = "sampled"
    """Drawn from the draft's distribution, which goes with the proposal (rejection and block verification)."""


def draft_scores(
    logits_BWD: Tensor, state: DecodeState, paths: NodePaths, vocab: DraftVocab, mode: ProposalMode
) -> Tensor:
    """Scores ``[B, W, D]`` whose order is the order in which tokens are drafted; maybe the logits themselves.

    Device only, static shapes, capture-safe.
    """
    if not state.sampling.features.active:
        return logits_BWD
    warped = warp_draft_logits(logits_BWD, state, paths, vocab)
    return coupled_scores(warped, state, paths, vocab) if mode is ProposalMode.COUPLED else warped


def chain_paths(state: DecodeState, tokens: list[Tensor]) -> NodePaths:
    """The newest node of a chain that has drafted ``tokens`` (``[B]`` each): it is the only one to be expanded."""
    rows, step = state.num_rows, len(tokens)
    device = state.lengths.device
    return NodePaths(
        depths=torch.full((rows, 1), step, dtype=torch.int64, device=device),
        tokens=torch.stack(tokens, dim=1) if tokens else state.roots.new_empty(rows, 0),
        on_path=torch.ones(rows, 1, step, dtype=torch.bool, device=device),
        num_levels=step + 1,
    )


def level_paths(path_tokens_BWL: Tensor) -> NodePaths:
    """W nodes of one level L, given the tokens ``[B, W, L]`` on the way to each."""
    rows, width, level = path_tokens_BWL.shape
    device = path_tokens_BWL.device
    own = torch.eye(width, dtype=torch.bool, device=device).repeat_interleave(level, dim=1)
    return NodePaths(
        depths=torch.full((rows, width), level, dtype=torch.int64, device=device),
        tokens=path_tokens_BWL.reshape(rows, width * level),
        on_path=own.expand(rows, -1, -1),
        num_levels=level + 1,
    )
