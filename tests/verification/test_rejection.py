from __future__ import annotations

import torch
from attrs import evolve

from outrider.sampling.noise import NoiseStream, uniform_noise
from outrider.types import DecodeState, DraftDistribution, SamplingParams
from outrider.verification import BlockVerifier, RejectionVerifier
from tests.sampling.toys import decode_state, distinct, ints, rows_of, tree

V = 4


def many(rows: int) -> DecodeState:
    state = rows_of(decode_state([[1]], [SamplingParams(temperature=1.0)], V), [0] * rows)
    return evolve(state, sampling=evolve(state.sampling, seeds=torch.arange(rows)))


def test_siblings_are_tried_in_order_each_against_what_the_ones_before_have_left() -> None:
    """By hand: p = (.1, .2, .3, .4), q = (.4, .3, .2, .1), children 0 then 1."""
    rows = 2000
    state = many(rows)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    q = torch.tensor([0.4, 0.3, 0.2, 0.1])
    proposal = tree(torch.tensor([[0, 1]] * rows), [[0, 0]] * rows)
    logits = p.log().expand(rows, 3, V)
    draws = uniform_noise(state.sampling.seeds, state.lengths, NoiseStream.ACCEPT, 2)
    first = draws[:, 0] < 0.1 / 0.4
    # norm(max(p - q, 0)) = (0, 0, 1/4, 3/4) leaves child 1 nothing; less q = (0, 1/2, 1/3, 1/6) it leaves id 3 alone.
    sampled = RejectionVerifier().accept(
        evolve(proposal, distribution=DraftDistribution(q.expand(rows, 2, V), warped=True)), logits, state
    )
    assert torch.equal(sampled.path[:, 1], torch.where(first, 1, 0))
    assert torch.equal(sampled.counts, first.long())
    assert ints(distinct(sampled.tokens[~first, 0])) == [3]
    # One-hot: child 0 with .1, then child 1 with .2 / .9.
    one_hot = RejectionVerifier().accept(proposal, logits, state)
    zeroth = draws[:, 0] < 0.1
    second = ~zeroth & (draws[:, 1] < 0.2 / 0.9)
    assert torch.equal(one_hot.path[:, 1], torch.where(zeroth, 1, torch.where(second, 2, 0)))
    assert not bool((one_hot.tokens[~zeroth & ~second, 0] < 2).any())


def test_a_sibling_that_comes_twice_is_not_given_a_second_chance() -> None:
    rows = 4000
    state = many(rows)
    logits = torch.zeros(rows, 4, V)
    accepted = RejectionVerifier().accept(tree(torch.tensor([[0, 0, 0]] * rows), [[0, 0, 0]] * rows), logits, state)
    counts = torch.bincount(accepted.tokens[:, 0], minlength=V)
    assert bool(((counts - rows / V).abs() < 5 * (rows * 3 / 16) ** 0.5).all())


def test_places_filled_up_where_q_had_too_few_tokens_are_no_draws() -> None:
    """q has one token, two children were asked for: the filler must not be taken for what is left of p."""
    rows = 4000
    state = many(rows)
    q = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(rows, 2, V)
    proposal = evolve(
        tree(torch.tensor([[0, 1]] * rows), [[0, 0]] * rows), distribution=DraftDistribution(q, warped=True)
    )
    accepted = RejectionVerifier().accept(proposal, torch.zeros(rows, 3, V), state)
    counts = torch.bincount(accepted.tokens[:, 0], minlength=V)
    assert bool(((counts - rows / V).abs() < 5 * (rows * 3 / 16) ** 0.5).all())


def test_block_verification_by_hand() -> None:
    """Two tokens: P1 = .5, R1 = sum max(.5 p - q, 0), P2 = min(1, P1 · p / q)."""
    rows = 3000
    state = many(rows)
    p = torch.tensor([[0.2, 0.3, 0.3, 0.2], [0.4, 0.4, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    q = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.1, 0.3, 0.3, 0.3]])
    proposal = evolve(
        tree(torch.tensor([[0, 0]] * rows), [[0, 1]] * rows),
        distribution=DraftDistribution(q.expand(rows, 2, V), warped=True),
    )
    accepted = BlockVerifier().accept(proposal, p.log().expand(rows, 3, V), state)
    draws = uniform_noise(state.sampling.seeds, state.lengths, NoiseStream.ACCEPT, 2)
    left = 0.5 * 0.4 - 0.1  # only id 0 has more left than q gives it
    first = draws[:, 0] < left / (left + 0.5)
    second = draws[:, 1] < min(1.0, 0.5 * 0.4 / 0.1)
    assert torch.equal(accepted.counts, torch.where(second, 2, torch.where(first, 1, 0)))
    assert bool((accepted.counts == 2).all())
    assert RejectionVerifier().accept(proposal, p.log().expand(rows, 3, V), state).counts.double().mean() < 1.9


def test_results_repeat_and_differ_between_seeds() -> None:
    state = many(64)
    proposal = tree(torch.tensor([[0, 1]] * 64), [[0, 0]] * 64)
    logits = torch.zeros(64, 3, V)
    one, two = (RejectionVerifier().accept(proposal, logits, state) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens)
    assert len(distinct(one.tokens[:, 0])) == V
