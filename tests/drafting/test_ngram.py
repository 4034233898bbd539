"""N-gram look-up: against a plain search, lossless on the trained pair, and worth it where text repeats."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.ngram import NgramBuilder, NgramDrafter
from outrider.errors import ConfigurationError
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import Proposal, SamplingParams
from outrider.types.request import Request
from outrider.verification import RejectionVerifier
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.backends.device_only import device_only
from tests.cases_data import greedy_cases
from tests.sampling.toys import decode_state
from tests.support.engines import engine_of, model_of, run
from tests.support.pair import trained_pair
from tests.support.recording import RecordingBuilder
from tests.support.toy_target import CPU, toy_target

GREEDY = SamplingParams()


def looked_up(sequence: Sequence[int], length: int, max_n: int, min_n: int) -> list[int] | None:
    """What a person would copy: the newest place of the longest n-gram, read on to the end and beyond."""
    for n in range(max_n, min_n - 1, -1):
        wanted = list(sequence[-n:])
        for end in range(len(sequence) - 2, n - 2, -1):
            if list(sequence[end - n + 1 : end + 1]) == wanted:
                grown = list(sequence)
                for step in range(length):
                    grown.append(grown[end + 1 + step])
                return grown[len(sequence) :]
    return None


def propose(sequences: Sequence[Sequence[int]], length: int, max_n: int, min_n: int, spare: int) -> Proposal:
    """A proposal for rows whose history is stale past their sequence; all wide enough for what is looked at."""
    state = decode_state(sequences, [GREEDY] * len(sequences), 9, spare=spare)
    bound = min(max(map(len, sequences)) + spare // 2, state.tokens.shape[1])
    drafter = NgramDrafter(length, len(sequences), CPU, max_n, min_n)
    with device_only():
        return drafter.propose(evolve(state, max_length=bound, context_length=1000))


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 8),
)
def test_proposals_are_what_a_plain_search_finds(
    sequences: list[list[int]], length: int, min_n: int, more: int, spare: int
) -> None:
    proposal = propose(sequences, length, min_n + more, min_n, spare)
    for row, sequence in enumerate(sequences):
        expected = looked_up(sequence, length, min_n + more, min_n)
        assert int(proposal.draft_lens[row]) == (0 if expected is None else length)
        tokens = [int(token) for token in proposal.tokens[row]]
        assert set(tokens) <= {*sequence}, "even padding holds tokens of the sequence"
        assert expected is None or tokens == expected


def test_the_longest_n_gram_wins_over_a_more_recent_one() -> None:
    sequence = [1, 2, 7, 5, 2, 8, 1, 2]
    assert propose([sequence], 2, 2, 1, 3).tokens[0].equal(torch.tensor([7, 5]))
    assert propose([sequence], 2, 1, 1, 3).tokens[0].equal(torch.tensor([8, 1]))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=11)], ids=["greedy", "sampled"])
def test_it_is_lossless_on_the_trained_pair(params: SamplingParams) -> None:
    target = trained_pair().target
    requests = [Request(case.prompt, 40, evolve(params, seed=index)) for index, case in enumerate(greedy_cases()[:5])]
    plain = run(engine_of(target), requests)
    for builder, batch in ((NgramBuilder(4), 3), (NgramBuilder(7, max_n=2, min_n=2), 5)):
        found = run(engine_of(target, builder, EngineOptions(max_batch_size=batch, page_size=5)), requests)
        assert [outcome.token_ids for outcome in found] == [outcome.token_ids for outcome in plain]
        assert any(length > 1 for outcome in found for length in outcome.accept_lengths)


def test_rejection_sampling_takes_it_as_one_hot() -> None:
    """With a sampler that accepts at random the tokens are others, but a greedy row's are not."""
    target = trained_pair().target
    case = greedy_cases()[0]
    engine = build_engine(
        target, NgramBuilder(4), attention=SdpaBackend(), runner=EagerRunner(), verifier=RejectionVerifier()
    )
    greedy, sampled = run(engine, [Request(case.prompt, 30), Request(case.prompt, 30, SamplingParams(temperature=1.0))])
    assert tuple(greedy.token_ids) == case.token_ids[:30]
    assert len(sampled.token_ids) == 30 or sampled.reason == "eos"


def test_text_that_repeats_is_accepted_many_tokens_at_a_time() -> None:
    function = "def add(a, b):\n    return a + b\n\n"
    model = model_of(trained_pair().target, NgramBuilder(6))
    repeated = model.generate(function * 3, max_new_tokens=48)
    assert repeated.token_ids == model.without_draft().generate(function * 3, max_new_tokens=48).token_ids
    assert repeated.statistics.mean_acceptance_length > 3.0


def test_near_the_context_limit_the_draft_shrinks() -> None:
    target = toy_target()
    limit = target.stack.spec.max_positions
    recording = RecordingBuilder(NgramBuilder(5))
    # Every id has occurred, so that there is always something to copy.
    prompt = tuple(range(48)) + tuple(range(limit - 8 - 48))
    (outcome,) = run(engine_of(target, recording), [Request(prompt, 50)])
    assert outcome.reason == "context"
    for row in recording.proposed:
        assert row.draft_len == max(min(5, limit - 1 - len(row.history)), 0)


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (NgramBuilder(0), "num_draft_tokens is 0"),
        (NgramBuilder(3, max_n=1, min_n=2), "1 down to 2 tokens"),
        (NgramBuilder(3, min_n=0), "1 <= min_n"),
        (NgramBuilder(-1, max_n=0), "(?s)2 problems.*num_draft_tokens is -1.*0 down to 1"),
    ],
)
def test_sizes_that_cannot_work_are_refused(builder: NgramBuilder, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engine_of(toy_target(), builder)
