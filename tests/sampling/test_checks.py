"""Sampling parameters that cannot be honoured are named before anything runs; those at the edge are honoured."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.errors import InputError, Problems
from outrider.loop.sampling_rows import SamplingRows
from outrider.sampling import check_sampling
from outrider.types import SamplingParams

VOCAB = 8
LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def check(params: SamplingParams, vocab_size: int | None = VOCAB, end_ids: tuple[int, ...] = ()) -> None:
    with Problems("sampling", InputError) as problems:
        check_sampling(params, vocab_size, problems, end_ids)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=LARGEST, top_k=(1 << 63) - 1, seed=(1 << 63) - 1),
        SamplingParams(temperature=1e-300, top_p=1e-300, min_p=1.0),
        SamplingParams(repetition_penalty=SMALLEST, presence_penalty=-LARGEST, frequency_penalty=LARGEST),
        SamplingParams(repetition_penalty=LARGEST, logit_bias={0: -LARGEST, 1: LARGEST, 2: -math.inf}),
        SamplingParams(min_new_tokens=10**30),
    ],
)
def test_whatever_is_allowed_fits_the_device(params: SamplingParams) -> None:
    check(params)
    rows = SamplingRows(1, VOCAB, torch.device("cpu"))
    rows.set_row(0, params, prompt_length=3)
    state = rows.view(0, 1)
    assert int(state.min_totals[0]) >= min(params.min_new_tokens, 1 << 62)
    assert int(state.seeds[0]) == params.seed


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(temperature=-0.1), "temperature"),
        (SamplingParams(temperature=1e39), "temperature"),
        (SamplingParams(temperature=math.nan), "temperature"),
        (SamplingParams(top_k=1 << 63), "top_k"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(top_p=0.0), "top_p"),
        (SamplingParams(min_p=math.nan), "min_p"),
        (SamplingParams(repetition_penalty=1e300), "repetition_penalty"),
        (SamplingParams(repetition_penalty=1e-300), "repetition_penalty"),
        (SamplingParams(presence_penalty=-1e300), "presence_penalty"),
        (SamplingParams(frequency_penalty=math.inf), "frequency_penalty"),
        (SamplingParams(logit_bias={1: 1e300}), "logit_bias"),
        (SamplingParams(logit_bias={1: math.inf}), "logit_bias"),
        (SamplingParams(logit_bias={VOCAB: 0.0}), "logit_bias"),
        (SamplingParams(banned_token_ids=(-1,)), "banned_token_ids"),
        (SamplingParams(allowed_token_ids=(VOCAB, 1)), "allowed_token_ids"),
        (SamplingParams(min_new_tokens=-1), "min_new_tokens"),
        (SamplingParams(seed=-1), "seed"),
        (SamplingParams(seed=1 << 63), "seed"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(params: SamplingParams, name: str) -> None:
    with pytest.raises(InputError, match=rf"sampling: '{name}' .*allowed is "):
        check(params)


EVERY = tuple(range(VOCAB))


@pytest.mark.parametrize(
    ("params", "end_ids", "said"),
    [
        (SamplingParams(banned_token_ids=EVERY), (), "leaves no token"),
        (SamplingParams(logit_bias=dict.fromkeys(EVERY, -math.inf)), (), "leaves no token"),
        (SamplingParams(banned_token_ids=EVERY[1:], logit_bias={0: -math.inf}), (), "leaves no token"),
        (SamplingParams(allowed_token_ids=()), (), "leaves no token"),
        (SamplingParams(allowed_token_ids=(3,), logit_bias={3: -math.inf}), (), "leaves no token"),
        (SamplingParams(allowed_token_ids=(3,), min_new_tokens=1), (3, 5), "nothing but ids that end the output"),
        (SamplingParams(banned_token_ids=EVERY[1:], min_new_tokens=1), (0,), "nothing but ids that end the output"),
    ],
)
def test_some_token_must_be_left(params: SamplingParams, end_ids: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(params, end_ids=end_ids)


@pytest.mark.parametrize(
    ("params", "end_ids"),
    [
        (SamplingParams(banned_token_ids=EVERY[1:]), (0,)),
        (SamplingParams(allowed_token_ids=(3,)), (3,)),
        (SamplingParams(allowed_token_ids=(3, 4), min_new_tokens=1), (3,)),
        (SamplingParams(logit_bias=dict.fromkeys(EVERY, -1e30)), ()),
    ],
)
def test_one_token_is_enough(params: SamplingParams, end_ids: tuple[int, ...]) -> None:
    check(params, end_ids=end_ids)


def test_without_a_vocabulary_only_signs_are_checked() -> None:
    check(SamplingParams(banned_token_ids=(10**9,)), vocab_size=None)
    with pytest.raises(InputError, match="'banned_token_ids' holds -1, allowed is 0 or more"):
        check(SamplingParams(banned_token_ids=(-1,)), vocab_size=None)
