"""Checks of requests, before anything runs."""

from __future__ import annotations

from collections.abc import Collection

from outrider.errors import ContextLengthError, InputError, Problems
from outrider.sampling import check_sampling, check_token_ids
from outrider.types import ModelSpec
from outrider.types.request import Request

__all__ = ["check_request"]


def check_request(
    request: Request,
    spec: ModelSpec,
    eos_ids: tuple[int, ...],
    context_length: int,
    max_stop_ids: int,
    media: Collection[int] = (),
) -> None:
    """Refuse a request that cannot be run; ``eos_ids`` are the target's own.

    ``media``: indices of placeholders, whose ids may lie outside the vocabulary.

    Raises:
        InputError: with every fault found: empty prompt, ids out of range, limits below 1, too many end ids, sampling
            parameters that cannot be honoured.
        ContextLengthError: only the length of the prompt is wrong.
    """
    length = len(request.prompt)
    too_long = (
        f"the prompt has {length} tokens, the context holds {context_length} and one must be left for an answer; "
        f"shorten it to {context_length - 1}"
    )
    with Problems("the request cannot be run", InputError) as problems:
        if not request.prompt:
            problems.add("the prompt is empty; give at least one token")
        outside = [
            token
            for place, token in enumerate(request.prompt)
            if not 0 <= token < spec.vocab_size and place not in media
        ]
        if outside:
            some = ", ".join(map(str, outside[:5])) + (", …" if len(outside) > 5 else "")
            problems.add(f"token ids {some} are outside the vocabulary 0..{spec.vocab_size - 1} of {spec.name}")
        if request.max_new_tokens < 1:
            problems.add(f"max_new_tokens is {request.max_new_tokens}, at least 1 is needed")
        if request.draft_cap is not None and request.draft_cap < 0:
            problems.add(f"draft_cap is {request.draft_cap}, 0 or more is needed")
        if request.wants.logprobs is not None and request.wants.logprobs < 0:
            problems.add(f"wants.logprobs is {request.wants.logprobs}, 0 (the chosen token alone) or more is needed")
        end_ids = eos_ids if request.eos_ids is None else request.eos_ids
        if len(end_ids) > max_stop_ids:
            problems.add(f"{len(end_ids)} end ids, the engine holds {max_stop_ids} (max_stop_ids)")
        check_token_ids("eos_ids", request.eos_ids or (), spec.vocab_size, problems)
        check_sampling(request.sampling, spec.vocab_size, problems, end_ids)
        if length >= context_length:
            if not len(problems):
                raise ContextLengthError(f"the request cannot be run: {too_long}")
            problems.add(too_long)
