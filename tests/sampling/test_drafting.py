from __future__ import annotations

import torch
from attrs import evolve

from outrider.sampling import draw_children, warp_draft_logits
from outrider.sampling.paths import NodePaths
from outrider.types import DecodeState, DraftVocab, SamplingParams
from tests.sampling.toys import chi_square_p, decode_state, rows_of

IDS = torch.tensor([6, 1, 4, 3])
VOCAB = DraftVocab(size=4, target_size=7, target_ids=IDS)
LOGITS = torch.tensor([0.3, 1.0, -0.5, 0.0])


def many(params: SamplingParams, rows: int) -> DecodeState:
    state = rows_of(decode_state([[1, 2]], [params], 7), [0] * rows)
    return evolve(state, sampling=evolve(state.sampling, seeds=torch.arange(rows)))


def test_children_come_in_the_order_and_with_the_odds_of_draws_without_replacement() -> None:
    rows = 200_000
    state = many(SamplingParams(temperature=0.7), rows)
    warped = warp_draft_logits(LOGITS.expand(rows, 1, 4), state, NodePaths.root(state), VOCAB)
    drawn = draw_children(warped, state, VOCAB, level=0, count=2)
    assert torch.equal(drawn.target_ids, IDS[drawn.draft_ids])
    q = (LOGITS.double() / 0.7).softmax(0)
    assert torch.allclose(drawn.probs[0, 0].double()[IDS], q)
    assert float(drawn.probs[0, 0].sum()) - 1 < 1e-6
    assert not bool(drawn.probs[0, 0, [0, 2, 5]].any())
    due = q[:, None] * q[None, :] / (1 - q[:, None])
    due.fill_diagonal_(0.0)
    first, second = drawn.draft_ids[:, 0].T
    counts = torch.bincount(first * 4 + second, minlength=16)
    assert chi_square_p(counts, due * rows) > 1e-3
    assert chi_square_p(counts, due.T * rows) < 1e-6


def test_greedy_rows_take_their_best_with_a_one_hot_distribution() -> None:
    state = many(SamplingParams(temperature=0.0), 3)
    warped = warp_draft_logits(LOGITS.expand(3, 1, 4), state, NodePaths.root(state), VOCAB)
    drawn = draw_children(warped, state, VOCAB, level=0, count=2)
    assert torch.equal(drawn.target_ids, torch.tensor([1, 6]).expand(3, 1, 2))
    assert torch.equal(drawn.probs[0, 0], torch.eye(7)[1])


def test_levels_and_rounds_draw_afresh() -> None:
    rows = 4000
    state = many(SamplingParams(temperature=1.0), rows)
    later = evolve(state, lengths=state.lengths + 1)
    warped = torch.zeros(rows, 1, 4)
    draws = [
        draw_children(warped, state, VOCAB, level=0, count=1),
        draw_children(warped, state, VOCAB, level=1, count=1),
        draw_children(warped, later, VOCAB, level=0, count=1),
    ]
    for a in range(3):
        for b in range(a):
            same = (draws[a].draft_ids == draws[b].draft_ids).double().mean()
            assert abs(float(same) - 0.25) < 0.03
