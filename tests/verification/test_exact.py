from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.interfaces import Verifier
from outrider.sampling import NodePaths, coupled_scores, warp_logits
from outrider.sampling.noise import exponential_noise
from outrider.types import Acceptance, DecodeState, DraftVocab, Proposal, SamplingParams
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier
from tests.sampling.test_warp import PARAMS, STOPS, V
from tests.sampling.toys import chain, decode_state, ints, reference_warp, rows_of, tree
from tests.verification.greedy import GreedyVerifier

MODEL = torch.randn(V, V, generator=torch.Generator().manual_seed(5)) * 2
"""Logits after each token; histories enter through the penalties."""
PARENTS = [[0, 0, 1, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 3, 0, 5, 5], [0, 0, 0, 0, 0, 0, 0]]


def plain(
    sequence: Sequence[int], prompt_len: int, params: SamplingParams, stops: Sequence[int], count: int
) -> list[int]:
    """Plain decoding, one token after the other, in float64 and with transformers' processors."""
    tokens = list(sequence)
    for _ in range(count):
        scores = reference_warp(MODEL[tokens[-1]], tokens, prompt_len, params, stops).double()
        noise = exponential_noise(torch.tensor([params.seed]), torch.tensor([len(tokens)]), V)[0].double()
        tokens.append(int((scores if params.greedy else scores.softmax(0) / noise).argmax()))
    return tokens[len(sequence) :]


def requests(seed: int) -> tuple[DecodeState, list[list[int]]]:
    """One request for each of `PARAMS`, and what plain decoding makes of it."""
    generator = torch.Generator().manual_seed(seed)
    params = [evolve(p, seed=seed * 100 + r) for r, p in enumerate(PARAMS)]
    lengths = ints(torch.randint(0, 5, (len(params),), generator=generator) + 2)
    sequences = [ints(torch.randint(0, 6, (n,), generator=generator)) for n in lengths]
    stops = [STOPS[: r % 3] for r in range(len(params))]
    prompts = [n - 1 for n in lengths]
    state = decode_state(sequences, params, V, prompt_lens=prompts, stop_ids=stops)
    rows = zip(sequences, prompts, params, stops, strict=True)
    return state, [plain(s, n, p, e, 9) for s, n, p, e in rows]


def trees(seed: int, truth: list[list[int]], agreement: float) -> Proposal:
    """Trees of distinct siblings in which a path agrees with the truth more or less often."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[int]] = []
    parents = [PARENTS[(seed + r) % 4] for r in range(len(truth))]
    for row, right in enumerate(truth):
        tokens: list[int] = []
        depths = [0]
        for node, parent in enumerate(parents[row]):
            depths.append(depths[parent] + 1)
            siblings = {tokens[i] for i in range(node) if parents[row][i] == parent}
            wanted = right[depths[parent]]
            if wanted in siblings or float(torch.rand((), generator=generator)) > agreement:
                free = [t for t in range(V) if t not in siblings]
                wanted = free[int(torch.randint(0, len(free), (), generator=generator))]
            tokens.append(wanted)
        rows.append(tokens)
    lens = ints(torch.randint(0, 8, (len(truth),), generator=generator))
    return tree(torch.tensor(rows), parents, lens)


def logits_of(state: DecodeState, proposal: Proposal) -> Tensor:
    return MODEL[torch.cat([state.roots[:, None], proposal.tokens], dim=1)]


def emitted(accepted: Acceptance, row: int) -> list[int]:
    return ints(accepted.tokens[row, : int(accepted.counts[row]) + 1])


def check_invariants(accepted: Acceptance, proposal: Proposal) -> None:
    """The path leads from the root along parents, holds what was drafted, and stays within the draft length."""
    batch = proposal.tokens.shape[0]
    assert accepted.path.shape == accepted.tokens.shape == (batch, proposal.shape.depth + 1)
    for row in range(batch):
        count = int(accepted.counts[row])
        path = ints(accepted.path[row])
        assert path[0] == 0
        assert all(0 <= node <= proposal.shape.num_tokens for node in path)
        assert 0 <= count <= min(int(proposal.draft_lens[row]), proposal.shape.depth)
        for column in range(count):
            assert int(proposal.parents[row, path[column + 1] - 1]) == path[column]
            assert int(accepted.tokens[row, column]) == int(proposal.tokens[row, path[column + 1] - 1])


@settings(max_examples=25)
@given(st.integers(0, 10**5), st.sampled_from([0.0, 0.6, 1.0]))
def test_output_is_that_of_plain_decoding_with_any_tree_and_setting(seed: int, agreement: float) -> None:
    state, truth = requests(seed)
    proposal = trees(seed, truth, agreement)
    accepted = ExactVerifier().accept(proposal, logits_of(state, proposal), state)
    check_invariants(accepted, proposal)
    assert bool(accepted.finite.all())
    for row, right in enumerate(truth):
        assert emitted(accepted, row) == right[: int(accepted.counts[row]) + 1]
        # The bonus has no child of its own: nothing that could be accepted was left out.
        node = int(accepted.path[row, int(accepted.counts[row])])
        children = [i for i in range(7) if int(proposal.parents[row, i]) == node]
        deep = int(accepted.counts[row]) >= int(proposal.draft_lens[row])
        assert deep or emitted(accepted, row)[-1] not in ints(proposal.tokens[row, children])


@pytest.mark.parametrize("drafted", [0, 1, 4])
def test_the_truth_as_draft_is_accepted_whole_and_a_false_one_not_at_all(drafted: int) -> None:
    state, truth = requests(7)
    right = torch.tensor([t[:drafted] for t in truth], dtype=torch.int64).reshape(len(truth), drafted)
    proposal = chain(right)
    accepted = ExactVerifier().accept(proposal, logits_of(state, proposal), state)
    assert ints(accepted.counts) == [drafted] * len(truth)
    assert torch.equal(accepted.tokens, torch.tensor([t[: drafted + 1] for t in truth]))
    wrong = chain((right + 1) % V)
    refused = ExactVerifier().accept(wrong, logits_of(state, wrong), state)
    assert ints(refused.counts) == [0] * len(truth)
    assert ints(refused.tokens[:, 0]) == [t[0] for t in truth]


@settings(max_examples=15)
@given(st.integers(0, 10**5), st.permutations(range(len(PARAMS))))
def test_a_seed_gives_the_same_tokens_alone_in_a_batch_in_another_order_and_with_another_draft(
    seed: int, order: list[int]
) -> None:
    state, truth = requests(seed)
    shuffled = rows_of(state, order)
    proposal = trees(seed + 1, [truth[r] for r in order], 0.7)
    accepted = ExactVerifier().accept(proposal, logits_of(shuffled, proposal), shuffled)
    for place, row in enumerate(order):
        assert emitted(accepted, place) == truth[row][: int(accepted.counts[place]) + 1]


def test_a_draft_that_is_the_target_is_always_accepted_when_it_shares_the_noise() -> None:
    """Coupled drafting, level after level, with penalties, bias and minimum length on both sides."""
    state, truth = requests(11)
    vocab = DraftVocab(size=V, target_size=V)
    tokens = torch.empty(state.num_rows, 0, dtype=torch.int64)
    for level in range(4):
        last = tokens[:, -1] if level else state.roots
        paths = NodePaths(
            depths=torch.full((state.num_rows, 1), level),
            tokens=tokens,
            on_path=torch.ones(state.num_rows, 1, level, dtype=torch.bool),
            num_levels=4,
        )
        scores = coupled_scores(warp_logits(MODEL[last][:, None], state, paths).scores, state, paths, vocab)
        tokens = torch.cat([tokens, scores.argmax(-1)], dim=1)
    proposal = chain(tokens)
    accepted = ExactVerifier().accept(proposal, logits_of(state, proposal), state)
    assert ints(accepted.counts) == [4] * state.num_rows
    assert torch.equal(accepted.tokens, torch.tensor([t[:5] for t in truth]))


def test_coupled_drafts_are_accepted_at_least_as_often_as_the_bound_says() -> None:
    """(1 - TV) / (1 + TV), and by far more often than drafts with noise of their own."""
    rows = 20_000
    state = rows_of(decode_state([[1, 2]], [SamplingParams(temperature=1.0)], V), [0] * rows)
    state = evolve(state, sampling=evolve(state.sampling, seeds=torch.arange(rows)))
    p_logits = MODEL[2]
    q_logits = p_logits + torch.randn(V, generator=torch.Generator().manual_seed(3)) * 0.3
    distance = float((p_logits.softmax(0) - q_logits.softmax(0)).abs().sum()) / 2
    paths = NodePaths.root(state)
    vocab = DraftVocab(size=V, target_size=V)
    rates: list[float] = []
    for seeds in (state.sampling.seeds, state.sampling.seeds + rows):
        drafter = evolve(state, sampling=evolve(state.sampling, seeds=seeds))
        tokens = coupled_scores(q_logits.expand(rows, 1, V), drafter, paths, vocab).argmax(-1)
        one = chain(tokens[:1])
        proposal = evolve(
            one,
            tokens=tokens,
            parents=one.parents.expand(rows, -1),
            depths=one.depths.expand(rows, -1),
            ancestors=one.ancestors.expand(rows, -1, -1),
            draft_lens=one.draft_lens.expand(rows),
        )
        accepted = ExactVerifier().accept(proposal, p_logits.expand(rows, 2, V), state)
        rates.append(float(accepted.counts.double().mean()))
    assert rates[0] > (1 - distance) / (1 + distance) - 0.01
    assert rates[1] < rates[0] - 0.2


@settings(max_examples=20)
@given(st.integers(0, 10**5))
def test_greedy_rows_come_out_alike_from_every_lossless_verifier(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    params = [SamplingParams(seed=r) if r % 2 else SamplingParams(temperature=1.0, seed=r) for r in range(6)]
    state = decode_state([[1, 2]] * 6, params, V)
    greedy_rows = [1, 3, 5]
    truth = [plain([1, 2], 2, SamplingParams(), [], 8)] * 6
    right = torch.tensor([t[:7] for t in truth])
    off = (torch.rand(6, 7, generator=generator) < 0.2).long()
    for proposal in (trees(seed, truth, 0.7), chain((right + off) % V)):
        lens = torch.randint(0, proposal.shape.depth + 1, (6,), generator=generator)
        proposal = evolve(proposal, draft_lens=lens)
        logits = logits_of(state, proposal)
        ours = GreedyVerifier().accept(proposal, logits, state)
        verifiers: list[Verifier] = [ExactVerifier(), RejectionVerifier()]
        if proposal.shape.is_chain:
            verifiers.append(BlockVerifier())
        for verifier in verifiers:
            theirs = verifier.accept(proposal, logits, state)
            for row in greedy_rows:
                assert emitted(theirs, row) == emitted(ours, row)
