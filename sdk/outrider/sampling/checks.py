"""Which sampling parameters can be honoured: said once, for settings of users and for requests of embedders."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch

from outrider.errors import Problems
from outrider.types import SamplingParams

__all__ = ["check_sampling", "check_token_ids"]

_LARGEST = torch.finfo(torch.float32).max
_SMALLEST = torch.finfo(torch.float32).tiny
_INT64_END = 1 << 63
"""Parameters of a row stand on the device as float32 and int64."""


def check_sampling(
    params: SamplingParams, vocab_size: int | None, problems: Problems, end_ids: Collection[int] = ()
) -> None:
    """Add to ``problems`` every parameter out of range, and a choice that leaves no token to generate.

    Token ids are checked where ``vocab_size`` is known; ``end_ids`` are those that end the request.
    """
    for name, value, allowed, fits in _ranges(params):
        if not fits:
            problems.add(f"'{name}' is {value}, allowed is {allowed}")
    for name, listed in (
        ("logit_bias", params.logit_bias),
        ("banned_token_ids", params.banned_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    ):
        check_token_ids(name, listed, vocab_size, problems)
    _check_choice(params, vocab_size, problems, end_ids)


def check_token_ids(name: str, listed: Iterable[int], vocab_size: int | None, problems: Problems) -> None:
    """Add to ``problems`` the ids that no vocabulary, or not that of ``vocab_size`` ids, can hold."""
    outside = sorted({i for i in listed if i < 0 or (vocab_size is not None and i >= vocab_size)})
    if outside:
        allowed = "0 or more" if vocab_size is None else f"0 to {vocab_size - 1}"
        problems.add(f"'{name}' holds {', '.join(map(str, outside[:5]))}, allowed is {allowed}")


def _check_choice(params: SamplingParams, vocab_size: int | None, problems: Problems, end_ids: Collection[int]) -> None:
    never = {*params.banned_token_ids, *(i for i, value in params.logit_bias.items() if value == -math.inf)}
    if params.allowed_token_ids is not None:
        left = set(params.allowed_token_ids) - never
        found = "'allowed_token_ids' without 'banned_token_ids' and those of 'logit_bias' -inf"
    elif vocab_size is not None and len(never) + len(end_ids) >= vocab_size:
        left = set(range(vocab_size)) - never
        found = f"the vocabulary of {vocab_size} without 'banned_token_ids' and those of 'logit_bias' -inf"
    else:
        return
    if not left:
        problems.add(f"{found} leaves no token to generate")
    elif params.min_new_tokens > 0 and left <= set(end_ids):
        problems.add(f"{found} leaves nothing but ids that end the output, and 'min_new_tokens' bars those at first")


def _ranges(params: SamplingParams) -> Iterable[tuple[str, object, str, bool]]:
    def is_float32(value: float) -> bool:
        return abs(value) <= _LARGEST  # false for NaN

    number = f"a finite float32 number, at most {_LARGEST:.4g} either way"
    biases = params.logit_bias
    return (
        (
            "temperature",
            params.temperature,
            f"0 or more, to {_LARGEST:.4g}",
            is_float32(params.temperature) and params.temperature >= 0,
        ),
        ("top_k", params.top_k, "0 or more, below 2**63", 0 <= params.top_k < _INT64_END),
        ("top_p", params.top_p, "above 0, to 1", 0 < params.top_p <= 1),
        ("min_p", params.min_p, "0 to 1", 0 <= params.min_p <= 1),
        (
            "repetition_penalty",
            params.repetition_penalty,
            f"above 0: {_SMALLEST:.4g} to {_LARGEST:.4g}",
            _SMALLEST <= params.repetition_penalty <= _LARGEST,
        ),
        ("presence_penalty", params.presence_penalty, number, is_float32(params.presence_penalty)),
        ("frequency_penalty", params.frequency_penalty, number, is_float32(params.frequency_penalty)),
        (
            "logit_bias",
            {i: value for i, value in biases.items() if not is_float32(value) and value != -math.inf},
            f"{number}, or -inf",
            all(is_float32(value) or value == -math.inf for value in biases.values()),
        ),
        ("min_new_tokens", params.min_new_tokens, "0 or more", params.min_new_tokens >= 0),
        ("seed", params.seed, "0 to 2**63 - 1", 0 <= params.seed < _INT64_END),
    )
