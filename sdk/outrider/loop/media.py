"""What the engine makes of a prompt with media before it runs: checks, and ids that its history can hold."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import InputError, Problems
from outrider.interfaces import PreparedPrompt
from outrider.types import ModelSpec

__all__ = ["check_prepared", "known_ids", "media_positions"]


def check_prepared(prepared: PreparedPrompt, prompt: tuple[int, ...], spec: ModelSpec) -> None:
    """Refuse what a provider prepared for another prompt, another target or another device.

    Raises:
        InputError: all faults at once.
    """
    count = len(prompt)
    axes = () if spec.positions.axes == 1 else (spec.positions.axes,)
    with Problems("the prepared prompt cannot be run", InputError) as problems:
        if prepared.token_ids != prompt:
            problems.add(
                f"it was prepared for {len(prepared.token_ids)} tokens, the request has {count} or others; give the request "
                "the ids that were prepared, placeholders repeated"
            )
        for name, tensor, shape, dtype in (
            ("embeds", prepared.embeds, (count, spec.hidden_size), spec.dtype),
            ("positions", prepared.positions, (*axes, count), None),
        ):
            fits = tuple(tensor.shape) == shape and (dtype is None or tensor.dtype == dtype)
            if not fits or tensor.device.type != spec.device.type:
                problems.add(
                    f"its {name} are {list(tensor.shape)} {tensor.dtype} on {tensor.device}, {spec.name} takes {list(shape)} "
                    f"{dtype or 'torch.int64'} on {spec.device}"
                )
        if prepared.positions.is_floating_point():
            problems.add(f"its positions are {prepared.positions.dtype}, whole numbers are needed")
        before = 0
        for start, end in prepared.media:
            if not before <= start < end <= count:
                problems.add(
                    f"a medium is said to stand at tokens {start} to {end - 1} of {count}; media must not be empty, follow "
                    "each other and lie within the prompt"
                )
            before = end


def media_positions(prepared: PreparedPrompt | None) -> frozenset[int]:
    """Indices of the tokens that stand for media."""
    return frozenset(place for start, end in (prepared.media if prepared else ()) for place in range(start, end))


def known_ids(prompt: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """``prompt`` with ids of the vocabulary only: a placeholder outside it becomes an id that the prompt holds anyway.

    A history must be safe to embed, whatever row of it is computed along. Penalties ask whether an id occurs at all, so
    repeating one changes nothing.
    """
    stand_in = next((token for token in prompt if 0 <= token < vocab_size), 0)
    return tuple(token if 0 <= token < vocab_size else stand_in for token in prompt)
