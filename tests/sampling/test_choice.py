from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.sampling import NodePaths, choose_tokens, coupled_scores, warp_draft_logits
from outrider.sampling.choice import row_noise
from outrider.sampling.noise import exponential_noise
from outrider.types import DraftVocab, SamplingFeatures, SamplingParams
from tests.sampling.test_warp import PARAMS, batch, expected
from tests.sampling.toys import chi_square_p, decode_state, ints, rows_of, tree

V = 23


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_the_choice_is_argmax_p_over_e_at_the_absolute_index(seed: int) -> None:
    """Against transformers' warped probabilities in float64, divided by the noise of one (seed, index) at a time."""
    params = [evolve(p, seed=seed + 1000 * r) for r, p in enumerate(PARAMS)]
    logits, state, proposal = batch(seed, params)
    chosen = choose_tokens(logits, state, proposal).tokens
    scores = expected(logits, state, proposal, params).double()
    for row, one in enumerate(params):
        for node in range(8):
            index = int(state.lengths[row]) + int(proposal.depths[row, node]) + 1
            noise = exponential_noise(torch.tensor([one.seed]), torch.tensor([index]), V)[0].double()
            keys = scores[row, node] if one.greedy else scores[row, node].softmax(0) / noise
            assert int(chosen[row, node]) == int(keys.argmax())


def test_choices_follow_the_distribution() -> None:
    """200k seeds; joint counts of two consecutive tokens, which tell dependent draws from independent ones."""
    rows = 200_000
    state = decode_state([[1, 2]], [SamplingParams(temperature=0.8)], 5)
    state = rows_of(state, [0] * rows)
    state = evolve(state, sampling=evolve(state.sampling, seeds=torch.arange(rows)))
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5]).expand(rows, 2, 5)
    pair = tree(torch.zeros(1, 1, dtype=torch.int64), [[0]])
    proposal = evolve(
        pair,
        tokens=pair.tokens.expand(rows, -1),
        parents=pair.parents.expand(rows, -1),
        depths=pair.depths.expand(rows, -1),
        ancestors=pair.ancestors.expand(rows, -1, -1),
        draft_lens=pair.draft_lens.expand(rows),
    )
    tokens = choose_tokens(logits, state, proposal).tokens
    p = (logits[0, 0].double() / 0.8).softmax(0)
    counts = torch.bincount(tokens[:, 0] * 5 + tokens[:, 1], minlength=25)
    assert chi_square_p(counts, torch.outer(p, p) * rows) > 1e-3
    assert chi_square_p(counts, torch.outer(p.roll(1), p) * rows) < 1e-6
    slightly_warmer = (logits[0, 0].double() / 0.83).softmax(0)
    assert chi_square_p(counts, torch.outer(slightly_warmer, slightly_warmer) * rows) < 1e-6


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.01, 5.0), st.booleans())
def test_top_k_1_and_temperature_0_are_greedy_and_ties_go_to_the_lowest_id(
    seed: int, temperature: float, coarse: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 1, V, generator=generator)
    if coarse:
        logits = logits.round()
    params = [
        SamplingParams(temperature=temperature, top_k=1, top_p=0.5, seed=seed),
        SamplingParams(temperature=0.0, top_p=0.5, min_p=0.5, top_k=7, seed=seed),
        SamplingParams(temperature=1e-30, seed=seed),
    ]
    state = decode_state([[1]] * 3, params, V)
    chosen = ints(choose_tokens(logits, state).tokens.flatten())
    first_best = [min(i for i in range(V) if row[i] == row.max()) for row in logits[:, 0]]
    assert chosen[:2] == first_best[:2]
    assert float(logits[2, 0, chosen[2]]) == float(logits[2].max())


def test_a_temperature_near_0_is_greedy() -> None:
    logits = torch.randn(200, 1, V, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=1e-5, seed=s) for s in range(200)]
    state = decode_state([[1]] * 200, params, V)
    assert torch.equal(choose_tokens(logits, state).tokens[:, 0], logits[:, 0].argmax(-1))


@pytest.mark.parametrize("parents", [[0] * 7, [0, 0, 1, 1, 2, 3, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_noise_handed_out_by_level_is_that_of_hashing_every_node(parents: list[int]) -> None:
    logits, state, proposal = batch(4, [SamplingParams(temperature=1.0, seed=r) for r in range(4)])
    proposal = tree(proposal.tokens, [parents] * 4)
    noise = row_noise(state, NodePaths.of(proposal).indices(state), V)
    assert torch.equal(choose_tokens(logits, state, proposal).tokens, (logits + noise).argmax(-1))


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.permutations(range(len(PARAMS))))
def test_a_seed_gives_the_same_token_alone_in_a_batch_and_in_another_order(seed: int, order: list[int]) -> None:
    params = [evolve(p, seed=seed * 7 + r) for r, p in enumerate(PARAMS)]
    logits, state, _ = batch(seed, params)
    root = logits[:, :1]
    whole = choose_tokens(root, state).tokens
    assert torch.equal(choose_tokens(root[order], rows_of(state, order)).tokens, whole[order])
    for row in order[:3]:
        assert torch.equal(choose_tokens(root[[row]], rows_of(state, [row])).tokens, whole[[row]])


def test_a_neighbour_of_nan_changes_nothing_and_is_told() -> None:
    params = [SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, seed=r) for r in range(3)]
    logits, state, proposal = batch(0, params)
    clean = choose_tokens(logits, state, proposal)
    logits[1] = torch.nan
    dirty = choose_tokens(logits, state, proposal)
    assert torch.equal(dirty.tokens[[0, 2]], clean.tokens[[0, 2]])
    assert ints(dirty.finite.all(dim=1)) == [True, False, True]
    assert bool(((dirty.tokens >= 0) & (dirty.tokens < V)).all())


def test_a_batch_without_features_is_plain_argmax() -> None:
    logits, state, proposal = batch(0, [SamplingParams()] * 3)
    state = evolve(state, sampling=evolve(state.sampling, features=SamplingFeatures()))
    assert torch.equal(choose_tokens(logits, state, proposal).tokens, logits.argmax(-1))


@pytest.mark.parametrize("params", [PARAMS[0], PARAMS[4], PARAMS[8], PARAMS[12], SamplingParams(), PARAMS[11]])
def test_a_reduced_draft_that_equals_the_target_on_its_ids_makes_the_targets_choice(params: SamplingParams) -> None:
    """The target gives nothing to the ids that the draft lacks; then both must choose alike, penalties and all."""
    ids = torch.tensor([22, 0, 4, 1, 3, 9, 2, 17, 8])
    vocab = DraftVocab(size=len(ids), target_size=V, target_ids=ids)
    logits, state, proposal = batch(9, [evolve(params, seed=r) for r in range(6)])
    outside = torch.ones(V, dtype=torch.bool).scatter(0, ids, False)
    logits[..., outside] = -torch.inf
    paths = NodePaths.of(proposal)
    draft = coupled_scores(warp_draft_logits(logits[..., ids], state, paths, vocab), state, paths, vocab)
    assert torch.equal(vocab.to_target(draft.argmax(-1)), choose_tokens(logits, state, proposal).tokens)
    # Noise keyed by draft ids instead of target ids is another noise.
    wrong = coupled_scores(
        warp_draft_logits(logits[..., ids], state, paths, vocab), state, paths, DraftVocab(len(ids), len(ids))
    )
    if not params.greedy:
        assert not torch.equal(wrong, draft)
