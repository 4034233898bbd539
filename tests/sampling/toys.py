"""Batches of requests, trees and reference answers for the tests of sampling and verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from attrs import evolve
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider.types import DecodeState, Proposal, SamplingFeatures, SamplingParams, SamplingState, TreeShape

ALL_FEATURES = SamplingFeatures(
    sampled=True, top_k=True, top_p=True, min_p=True, penalties=True, bias=True, min_tokens=True
)


def sampling_state(
    params: Sequence[SamplingParams],
    vocab_size: int,
    prompt_lens: Sequence[int],
    *,
    features: SamplingFeatures = ALL_FEATURES,
) -> SamplingState:
    def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(list(values), dtype=dtype)

    bias = torch.zeros(len(params), vocab_size)
    for row, one in enumerate(params):
        if one.allowed_token_ids is not None:
            bias[row] = -torch.inf
            bias[row, list(one.allowed_token_ids)] = 0.0
        for token, value in one.logit_bias.items():
            bias[row, token] += value
        bias[row, list(one.banned_token_ids)] = -torch.inf
    return SamplingState(
        temperature=column([p.temperature for p in params]),
        top_k=column([p.top_k for p in params], torch.int64),
        top_p=column([p.top_p for p in params], torch.float64),
        min_p=column([p.min_p for p in params]),
        repetition_penalty=column([p.repetition_penalty for p in params]),
        presence_penalty=column([p.presence_penalty for p in params]),
        frequency_penalty=column([p.frequency_penalty for p in params]),
        seeds=torch.tensor([p.seed for p in params], dtype=torch.int64),
        min_totals=torch.tensor([n + p.min_new_tokens for n, p in zip(prompt_lens, params, strict=True)]),
        bias=bias,
        features=features,
    )


def decode_state(
    sequences: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    vocab_size: int,
    *,
    prompt_lens: Sequence[int] | None = None,
    stop_ids: Sequence[Sequence[int]] | None = None,
    spare: int = 8,
    stale: int = 10**9,
    features: SamplingFeatures = ALL_FEATURES,
) -> DecodeState:
    """Requests whose tokens so far (root last) are ``sequences``; places past the end hold the absurd id ``stale``."""
    rows = len(sequences)
    width = max(len(s) for s in sequences) + spare
    tokens = torch.full((rows, width), stale, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(list(sequence))
    lengths = torch.tensor([len(s) - 1 for s in sequences])
    stops: list[list[int]] = [[]] * rows if stop_ids is None else [list(s) for s in stop_ids]
    most = max(1, *(len(s) for s in stops))
    prompts = list(prompt_lens) if prompt_lens is not None else [len(s) for s in sequences]
    return DecodeState(
        lengths=lengths,
        roots=tokens.gather(1, lengths[:, None]).squeeze(1),
        tokens=tokens,
        prompt_lens=torch.tensor(prompts),
        max_totals=torch.full((rows,), 10**6),
        stop_ids=torch.tensor([s + [-1] * (most - len(s)) for s in stops]),
        finished=torch.zeros(rows, dtype=torch.bool),
        draft_caps=torch.full((rows,), 10**6),
        page_table=torch.zeros(rows, 1, dtype=torch.int64),
        position_offsets=torch.zeros(rows, dtype=torch.int64),
        sampling=sampling_state(params, vocab_size, prompts, features=features),
        context_length=10**6,
        max_length=width - spare,
    )


def rows_of(state: DecodeState, rows: Sequence[int]) -> DecodeState:
    """The named rows alone, in that order."""
    return select_rows(state, torch.tensor(list(rows)))


def on_device(state: DecodeState, device: str) -> DecodeState:
    return select_rows(state, torch.arange(state.num_rows), device)


def select_rows(state: DecodeState, index: Tensor, device: str = "cpu") -> DecodeState:
    """The rows that ``index`` names, copied to ``device``."""
    sampling = state.sampling
    return evolve(
        state,
        lengths=state.lengths[index].to(device),
        roots=state.roots[index].to(device),
        tokens=state.tokens[index].to(device),
        prompt_lens=state.prompt_lens[index].to(device),
        max_totals=state.max_totals[index].to(device),
        stop_ids=state.stop_ids[index].to(device),
        finished=state.finished[index].to(device),
        draft_caps=state.draft_caps[index].to(device),
        page_table=state.page_table[index].to(device),
        position_offsets=state.position_offsets[index].to(device),
        sampling=evolve(
            sampling,
            temperature=sampling.temperature[index].to(device),
            top_k=sampling.top_k[index].to(device),
            top_p=sampling.top_p[index].to(device),
            min_p=sampling.min_p[index].to(device),
            repetition_penalty=sampling.repetition_penalty[index].to(device),
            presence_penalty=sampling.presence_penalty[index].to(device),
            frequency_penalty=sampling.frequency_penalty[index].to(device),
            seeds=sampling.seeds[index].to(device),
            min_totals=sampling.min_totals[index].to(device),
            bias=None if sampling.bias is None else sampling.bias[index].to(device).to(device),
        ),
    )


def tree(tokens: Tensor, parents: Sequence[Sequence[int]], draft_lens: Sequence[int] | None = None) -> Proposal:
    """The proposal of ``tokens [B, N]`` with each row's own parents; a chain where every row's parents are 0..N-1."""
    batch, drafted = tokens.shape
    nodes = drafted + 1
    depths = torch.zeros(batch, nodes, dtype=torch.int64)
    ancestors = torch.eye(nodes, dtype=torch.bool).repeat(batch, 1, 1)
    for row in range(batch):
        for node, parent in enumerate(parents[row], start=1):
            depths[row, node] = depths[row, parent] + 1
            ancestors[row, node] |= ancestors[row, parent]
    depth = int(depths.max())
    is_chain = all(list(p) == list(range(drafted)) for p in parents)
    lens = torch.tensor(list(draft_lens)) if draft_lens is not None else torch.full((batch,), depth)
    return Proposal(
        tokens=tokens,
        parents=torch.tensor([list(p) for p in parents], dtype=torch.int64).reshape(batch, drafted),
        depths=depths,
        ancestors=ancestors,
        draft_lens=lens,
        shape=TreeShape(num_tokens=drafted, depth=depth, is_chain=is_chain),
    )


def chain(tokens: Tensor, draft_lens: Sequence[int] | None = None) -> Proposal:
    return tree(tokens, [list(range(tokens.shape[1]))] * tokens.shape[0], draft_lens)


def path_tokens(proposal: Proposal, row: int, node: int) -> list[int]:
    """Drafted tokens from below the root to ``node``, by following parents."""
    found: list[int] = []
    while node > 0:
        found.append(int(proposal.tokens[row, node - 1]))
        node = int(proposal.parents[row, node - 1])
    return found[::-1]


def reference_warp(
    logits: Tensor, sequence: Sequence[int], prompt_len: int, params: SamplingParams, stop_ids: Sequence[int] = ()
) -> Tensor:
    """``logits [V]`` after transformers' own processors, in its order, for a token that follows ``sequence``.

    Presence and frequency, which transformers has not, are counted one by one. Greedy requests stop before the
    temperature.
    """
    vocab_size = logits.shape[0]
    ids = torch.tensor([[t for t in sequence if t < vocab_size]], dtype=torch.int64)
    scores = logits.to(torch.float32)[None].clone()
    bias = {(token,): float(value) for token, value in params.logit_bias.items()}
    if params.allowed_token_ids is not None:
        bias |= {(t,): -torch.inf for t in range(vocab_size) if t not in params.allowed_token_ids}
    bias |= {(t,): -torch.inf for t in params.banned_token_ids}
    before: list[LogitsProcessor] = []
    if bias:
        before.append(SequenceBiasLogitsProcessor(bias))  # type: ignore[arg-type]  # a dict is the documented form
    if params.repetition_penalty != 1.0:
        before.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    scores = run(before, ids, scores)
    for token in set(sequence[prompt_len:]):
        count = list(sequence[prompt_len:]).count(token)
        scores[0, token] -= torch.tensor(params.frequency_penalty) * count
        scores[0, token] -= params.presence_penalty
    if params.min_new_tokens > 0 and stop_ids and len(sequence) - prompt_len < params.min_new_tokens:
        stop_list = [t for t in stop_ids if 0 <= t < vocab_size]
        scores = run([MinNewTokensLengthLogitsProcessor(0, 1, stop_list)], ids[:, :0], scores)
    if params.greedy:
        return scores[0]
    warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(params.min_p))
    return run(warpers, ids, scores)[0]


def ints(values: Tensor) -> list[int]:
    """A vector of numbers or truth values as a list."""
    return cast("list[int]", values.tolist())  # pyright: ignore[reportUnknownMemberType] - torch annotates a bare list


def distinct(values: Tensor) -> Tensor:
    """The sorted values without repetition."""
    ordered = values.flatten().sort().values
    return ordered[torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])]


def run(processors: Sequence[LogitsProcessor], ids: Tensor, scores: Tensor) -> Tensor:
    for processor in processors:
        result: Tensor = processor(
            ids,  # pyright: ignore[reportArgumentType] - annotated with torch's legacy tensor classes
            scores,  # pyright: ignore[reportArgumentType] - likewise
        )
        scores = result
    return scores


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """The p-value of counts ``observed`` where ``expected`` were due; cells below 5 are pooled, impossible ones fatal."""
    observed, expected = observed.flatten().double(), expected.flatten().double()
    if bool((observed[expected <= 0] > 0).any()):
        return 0.0
    small = expected < 5
    seen = torch.cat([observed[~small], observed[small].sum()[None]])
    due = torch.cat([expected[~small], expected[small].sum()[None]])
    keep = due >= 1
    seen, due = seen[keep], due[keep]
    if len(due) < 2:
        return 1.0
    statistic = ((seen - due) ** 2 / due).sum()
    freedom = torch.tensor(float(len(due) - 1), dtype=torch.float64)
    return float(torch.igammac(freedom / 2, statistic / 2))
