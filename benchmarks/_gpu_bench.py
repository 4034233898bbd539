"""Texts that engines on a card give, and how they differ from what they must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as functional
from attrs import field, frozen
from torch import Tensor

from benchmarks._backends import EAGER, attention, runner
from benchmarks._cases import Case, TokenIds
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._pair import Pair, load_pair
from outrider import EngineOptions, Request, SamplingParams, build_engine
from outrider.interfaces import DrafterBuilder, Target
from outrider.types import RequestId, StackInputs

__all__ = [
    "Bench",
    "Generated",
    "differences",
    "gap_where_they_part",
    "generate",
    "mixed_sampling",
    "none_of",
    "unlike",
]


@frozen
class Bench:
    """Where and how thoroughly things are checked, with which attention backend."""

    device: torch.device
    quick: bool
    attention: str = "sdpa"

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """Batch sizes, each with a KV page size."""
        return ((8, 16),) if self.quick else ((1, 16), (3, min(self.page_sizes)))

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """KV page sizes; one alone where each would be compiled."""
        return (16,) if self.quick or self.attention == "triton" else (1, 16)

    def pair(self, dtype: torch.dtype = torch.float32) -> Pair:
        """The pair on the device, loaded once for each dtype."""
        return _pair_on(self.device, dtype)


@cache
def _pair_on(device: torch.device, dtype: torch.dtype) -> Pair:
    return load_pair(device, dtype)


@frozen
class Generated:
    """Texts of all prompts, with what each round accepted, and how often each step of the ladder ran something."""

    token_ids: tuple[TokenIds, ...]
    accept_lengths: tuple[TokenIds, ...]
    ran: Counter[str] = field(factory=lambda: Counter[str](), eq=False)


def generate(
    pair: Pair,
    builder: DrafterBuilder | None,
    prompts: Sequence[TokenIds],
    sampling: Sequence[SamplingParams] | None = None,
    *,
    batch: int = 8,
    page_size: int = 16,
    backend: str = "sdpa",
    step: str = EAGER,
) -> Generated:
    """Continue ``prompts``, at most ``batch`` at once, on an engine of their own."""
    options = EngineOptions(max_batch_size=batch, page_size=page_size, max_length=512)
    engine = build_engine(pair.target, builder, attention=attention(backend), runner=runner(step), options=options)
    chosen = [SamplingParams()] * len(prompts) if sampling is None else sampling
    order = [engine.submit(Request(prompt, MAX_NEW_TOKENS, how)) for prompt, how in zip(prompts, chosen, strict=True)]
    token_ids: dict[RequestId, list[int]] = {request: [] for request in order}
    lengths: dict[RequestId, list[int]] = {request: [] for request in order}
    while engine.has_work:
        for emission in engine.step():
            if emission.error is not None:
                raise emission.error
            token_ids[emission.request_id] += emission.token_ids
            if emission.accept_length is not None:
                lengths[emission.request_id].append(emission.accept_length)
    ran: Counter[str] = Counter()
    for (_, by), times in engine.report.ran.items():
        ran[by] += times
    engine.close()
    return Generated(
        tuple(tuple(token_ids[request]) for request in order),
        tuple(tuple(lengths[request]) for request in order),
        ran,
    )


def differences(found: Generated, cases: Sequence[Case], lengths: Sequence[TokenIds] | None) -> list[str]:
    """Where texts, or acceptance where it is known, are not those of the cases."""
    faults = [
        f"prompt {index}: not the reference's tokens"
        for index, (ids, case) in enumerate(zip(found.token_ids, cases, strict=True))
        if ids != case.continuation
    ]
    if lengths is not None:
        # Acceptance is known for the first prompts, in trees not for all.
        faults += [
            f"prompt {index}: accepted {ours}, the reference {wanted}"
            for index, (ours, wanted) in enumerate(zip(found.accept_lengths, lengths, strict=False))
            if ours != wanted
        ]
    return faults


def mixed_sampling(count: int) -> list[SamplingParams]:
    """Several ways of sampling, and a greedy request among them."""
    settings = [
        SamplingParams(temperature=1.0, seed=11),
        SamplingParams(temperature=0.7, top_p=0.9, seed=12),
        SamplingParams(temperature=1.3, top_k=50, min_p=0.02, seed=13),
        SamplingParams(),
    ]
    return [settings[index % len(settings)] for index in range(count)]


def unlike(found: Generated, wanted: Generated) -> list[str]:
    """Where texts differ that have the same seeds."""
    return [
        f"prompt {index}: not the tokens of the same seed"
        for index, (one, other) in enumerate(zip(found.token_ids, wanted.token_ids, strict=True))
        if one != other
    ]


def none_of(faults: Sequence[str]) -> None:
    """Fail with ``faults``, if there are any."""
    shown = "\n    ".join(faults[:12])
    assert not faults, f"{len(faults)} faults\n    {shown}"


@torch.inference_mode()
def gap_where_they_part(target: Target, prompt: TokenIds, one: TokenIds, other: TokenIds) -> float:
    """Distance between the logits of the two tokens at which two continuations part; 0 where they never do."""
    place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return 0.0
    stack = target.stack
    device = stack.spec.device
    ids = torch.tensor([*prompt, *one[:place]], device=device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))
        scale = stack.spec.layers[layer].scale
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(0, 1)

    inputs = StackInputs(torch.arange(len(ids), device=device), attend)
    last = stack.run_layers(stack.embed(ids), inputs).hidden[-1:]
    logits = stack.logits(last)[0]
    return float((logits[one[place]] - logits[other[place]]).abs())
