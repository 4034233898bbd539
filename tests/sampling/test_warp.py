from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.sampling.paths import NodePaths
from outrider.sampling.warp import warp_logits
from outrider.types import DecodeState, Proposal, SamplingFeatures, SamplingParams
from tests.sampling.toys import ALL_FEATURES, decode_state, ints, path_tokens, reference_warp, rows_of, tree

V = 23

PARAMS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=0.9, min_p=0.15),
    SamplingParams(temperature=0.6, top_k=9, top_p=0.7, min_p=0.05),
    SamplingParams(temperature=1.0, repetition_penalty=1.7),
    SamplingParams(temperature=1.0, presence_penalty=0.9, frequency_penalty=0.4),
    SamplingParams(repetition_penalty=0.8, presence_penalty=-0.5, frequency_penalty=0.3),
    SamplingParams(temperature=2.0, logit_bias={3: 2.5, 4: -1.0}, banned_token_ids=(5, 6)),
    SamplingParams(temperature=0.8, allowed_token_ids=(1, 2, 3, 7, 9), repetition_penalty=1.2),
    SamplingParams(temperature=1.0, min_new_tokens=4),
    SamplingParams(min_new_tokens=3),
    SamplingParams(
        temperature=1.1,
        top_k=12,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={0: 1.0, 8: -2.0},
        banned_token_ids=(2,),
        min_new_tokens=2,
    ),
]
STOPS = [0, V - 1]
PARENTS = [
    [0, 0, 1, 1, 2, 3, 6],
    [0, 1, 2, 3, 4, 5, 6],
    [0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 2, 2, 4, 5],
]


def batch(seed: int, params: list[SamplingParams], low: int = 5) -> tuple[Tensor, DecodeState, Proposal]:
    """Logits, requests and trees; few distinct ids, so that drafts repeat each other and the history."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: tuple[int, ...]) -> Tensor:
        return torch.randint(0, high, size, generator=generator)

    rows = len(params)
    lengths = ints(draw(6, (rows,)) + 2)
    sequences = [ints(draw(low, (n,))) for n in lengths]
    prompts = [int(draw(n, (1,))) + 1 for n in lengths]
    state = decode_state(sequences, params, V, prompt_lens=prompts, stop_ids=[STOPS[: r % 3] for r in range(rows)])
    proposal = tree(draw(low, (rows, 7)), [PARENTS[r % 4] for r in range(rows)])
    return torch.randn(rows, 8, V, generator=generator) * 3, state, proposal


def expected(logits: Tensor, state: DecodeState, proposal: Proposal, params: list[SamplingParams]) -> Tensor:
    """Each node on its own, with its history written out and transformers' processors applied to it."""
    result = torch.empty_like(logits)
    for row, one in enumerate(params):
        sequence = ints(state.tokens[row, : int(state.lengths[row]) + 1])
        stops = [t for t in ints(state.stop_ids[row]) if t >= 0]
        for node in range(logits.shape[1]):
            history = sequence + path_tokens(proposal, row, node)
            result[row, node] = reference_warp(logits[row, node], history, int(state.prompt_lens[row]), one, stops)
    return result


@pytest.mark.parametrize("seed", range(8))
def test_every_node_is_warped_as_transformers_would_with_the_nodes_own_history(seed: int) -> None:
    logits, state, proposal = batch(seed, PARAMS)
    untouched = logits.clone()
    warped = warp_logits(logits, state, NodePaths.of(proposal))
    assert torch.equal(warped.scores, expected(logits, state, proposal, PARAMS))
    assert torch.equal(logits, untouched)
    assert bool(warped.finite.all())


def test_a_stale_history_is_noticed() -> None:
    """The same check fails for a warp that gives every node the history of the root."""
    logits, state, proposal = batch(0, PARAMS)
    paths = NodePaths.of(proposal)
    stale = evolve(paths, on_path=torch.zeros_like(paths.on_path))
    assert not torch.equal(warp_logits(logits, state, stale).scores, expected(logits, state, proposal, PARAMS))


def test_the_prompt_counts_for_repetition_and_not_for_presence() -> None:
    repetition = SamplingParams(temperature=1.0, repetition_penalty=2.0)
    presence = SamplingParams(temperature=1.0, presence_penalty=2.0)
    state = decode_state([[1, 2, 3], [1, 2, 3]], [repetition, presence], V, prompt_lens=[2, 2])
    scores = warp_logits(torch.ones(2, 1, V), state, NodePaths.root(state)).scores[:, 0]
    assert ints((scores[0] != 1).nonzero().flatten()) == [1, 2, 3]
    assert ints((scores[1] != 1).nonzero().flatten()) == [3]


def test_ids_outside_the_vocabulary_are_left_out_of_the_history() -> None:
    params = [SamplingParams(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3)] * 2
    state = decode_state([[V + 7, 1, 2], [1, 2]], params, V, prompt_lens=[2, 1])
    logits = torch.randn(1, 1, V, generator=torch.Generator().manual_seed(0)).expand(2, 1, V)
    scores = warp_logits(logits, state, NodePaths.root(state)).scores
    assert torch.equal(scores[0], scores[1])


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.permutations(range(len(PARAMS))))
def test_rows_do_not_depend_on_their_neighbours(seed: int, order: list[int]) -> None:
    logits, state, proposal = batch(seed, PARAMS)
    whole = warp_logits(logits, state, NodePaths.of(proposal)).scores
    index = torch.tensor(order[:4])
    part = evolve(
        proposal,
        tokens=proposal.tokens[index],
        parents=proposal.parents[index],
        depths=proposal.depths[index],
        ancestors=proposal.ancestors[index],
        draft_lens=proposal.draft_lens[index],
    )
    alone = warp_logits(logits[index], rows_of(state, order[:4]), NodePaths.of(part)).scores
    assert torch.equal(alone, whole[index])


@pytest.mark.parametrize(
    ("params", "features"),
    [
        (SamplingParams(), SamplingFeatures()),
        (SamplingParams(temperature=0.5), SamplingFeatures(sampled=True)),
        (SamplingParams(temperature=0.5, top_k=4), SamplingFeatures(sampled=True, top_k=True)),
        (SamplingParams(temperature=0.5, top_p=0.4), SamplingFeatures(sampled=True, top_p=True)),
        (SamplingParams(temperature=0.5, min_p=0.4), SamplingFeatures(sampled=True, min_p=True)),
        (SamplingParams(repetition_penalty=1.4), SamplingFeatures(penalties=True)),
        (SamplingParams(banned_token_ids=(3,)), SamplingFeatures(bias=True)),
        (SamplingParams(min_new_tokens=9), SamplingFeatures(min_tokens=True)),
    ],
)
def test_unused_features_change_nothing(params: SamplingParams, features: SamplingFeatures) -> None:
    logits, state, proposal = batch(3, [params] * 4)
    paths = NodePaths.of(proposal)
    assert state.sampling.features == ALL_FEATURES
    full = warp_logits(logits, state, paths).scores
    assert torch.equal(full, expected(logits, state, proposal, [params] * 4))
    lean = evolve(state, sampling=evolve(state.sampling, features=features))
    assert torch.equal(warp_logits(logits, lean, paths).scores, full)


def test_ties_at_the_edges_fall_as_in_transformers() -> None:
    """Equal logits: top-k keeps all that tie with the k-th, top-p drops the lower ids."""
    params = [SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0, top_p=0.8)]
    logits = torch.zeros(2, 1, 10)
    logits[0, 0, :2] = 1.0
    state = decode_state([[1], [1]], params, 10)
    scores = warp_logits(logits, state, NodePaths.root(state)).scores[:, 0]
    assert torch.equal(scores[0], reference_warp(logits[0, 0], [1], 1, params[0]))
    assert bool(scores[0].isfinite().all())
    assert ints(scores[1].isfinite()) == [False] * 2 + [True] * 8


def test_finite_tells_rows_of_nan_infinity_and_nothing_left() -> None:
    params = [SamplingParams(temperature=1.0, top_k=3, top_p=0.5, min_p=0.1)] * 3
    params.append(SamplingParams(temperature=1.0, allowed_token_ids=(4,), min_new_tokens=1))
    params.append(SamplingParams(temperature=1.0))
    state = decode_state([[1]] * 5, params, V, stop_ids=[[4]] * 5)
    logits = torch.randn(5, 1, V, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 7] = torch.nan
    logits[1] = torch.nan
    logits[2, 0, 3] = torch.inf
    logits[4, 0, 3] = -torch.inf
    warped = warp_logits(logits, state, NodePaths.root(state))
    assert ints(warped.finite.flatten()) == [False, False, False, False, True]


def test_a_colder_temperature_than_float32_can_divide_by_is_still_no_nan() -> None:
    state = decode_state([[1]], [SamplingParams(temperature=1e-38, top_p=0.9)], V)
    logits = torch.randn(1, 1, V, generator=torch.Generator().manual_seed(0)) * 1e3
    scores = warp_logits(logits, state, NodePaths.root(state)).scores
    assert not bool(scores.isnan().any())
    assert int(scores.argmax()) == int(logits.argmax())
