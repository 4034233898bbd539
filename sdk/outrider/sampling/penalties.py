"""Repetition, presence and frequency penalties, with a history of its own for every node of a tree.

Shape suffixes: B requests, M nodes, N drafted tokens, V vocabulary, C places of the token history.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.sampling.paths import NodePaths
from outrider.types import SamplingState
from outrider.types.state import DecodeState

__all__ = ["penalise_", "token_history"]


def token_history(state: DecodeState, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Which tokens each row holds, and how often it generated each: ``seen [B, V]`` bool, ``counts [B, V]`` float32.

    ``seen`` covers prompt and generated tokens, ``counts`` the generated ones alone; the root counts as either. Ids
    outside the vocabulary (placeholders of media) are left out. Device only, static shapes, capture-safe.
    """
    tokens_BC = state.tokens[:, : state.max_length]
    places = torch.arange(tokens_BC.shape[1], device=tokens_BC.device)
    written_BC = places <= state.lengths[:, None]
    known_BC = written_BC & (tokens_BC >= 0) & (tokens_BC < vocab_size)
    # The extra column takes whatever must not be counted, so that stale ids past the end are harmless.
    columns_BC = torch.where(known_BC, tokens_BC, vocab_size)
    generated_BC = (places >= state.prompt_lens[:, None]).to(torch.float32)
    zeros = torch.zeros(tokens_BC.shape[0], vocab_size + 1, dtype=torch.float32, device=tokens_BC.device)
    counts_BV = zeros.scatter_add(1, columns_BC, generated_BC)[:, :vocab_size]
    seen_BV = zeros.scatter(1, columns_BC, 1.0)[:, :vocab_size] > 0
    return seen_BV, counts_BV


def penalise_(scores_BMV: Tensor, state: DecodeState, paths: NodePaths) -> Tensor:
    """``scores_BMV [B, M, V]`` float32 with each row's penalties applied in place; returned.

    For a token x before whose choice the sequence holds x at all (prompt included): s < 0 becomes s·r, else s / r, with
    the repetition penalty r. Then ``frequency · n + presence · [n > 0]`` is taken off, n being how often x was
    *generated* (prompt excluded). The sequence of a node is the request's tokens, the root, and the drafted tokens on
    the node's own path. Device only, static shapes, capture-safe.

    Source: transformers ``RepetitionPenaltyLogitsProcessor``; presence and frequency as in the OpenAI API and vLLM.
    """
    vocab_size = scores_BMV.shape[2]
    seen_BV, counts_BV = token_history(state, vocab_size)
    if paths.tokens.shape[1] == 0:
        return scores_BMV.copy_(_penalised(scores_BMV, seen_BV[:, None], counts_BV[:, None], state.sampling))
    # Only drafted tokens can differ between the nodes of a row, so those [B, M, N] entries are worked out apart.
    tokens_BN = paths.tokens.clamp(0, vocab_size - 1)
    same_BNN = (tokens_BN[:, :, None] == tokens_BN[:, None, :]).to(torch.float32)
    drafted_BMN = torch.matmul(paths.on_path.to(torch.float32), same_BNN)
    columns_BMN = tokens_BN[:, None].expand_as(drafted_BMN)
    special_BMN = _penalised(
        scores_BMV.gather(2, columns_BMN),
        seen_BV.gather(1, tokens_BN)[:, None] | (drafted_BMN > 0),
        counts_BV.gather(1, tokens_BN)[:, None] + drafted_BMN,
        state.sampling,
    )
    scores_BMV.copy_(_penalised(scores_BMV, seen_BV[:, None], counts_BV[:, None], state.sampling))
    # Equal tokens carry equal values, so it does not matter which of them is written last.
    return scores_BMV.scatter_(2, columns_BMN, special_BMN)


def _penalised(scores: Tensor, seen: Tensor, counts: Tensor, sampling: SamplingState) -> Tensor:
    repetition = sampling.repetition_penalty[:, None, None]
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    repeated = torch.where(seen, repeated, scores)
    repeated = repeated - sampling.frequency_penalty[:, None, None] * counts
    return repeated - sampling.presence_penalty[:, None, None] * (counts > 0)
