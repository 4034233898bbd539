"""Engines, runners and requests for tests of capturing ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.graphs import GraphOptions, LadderRunner, Steps, request_buckets, token_buckets
from outrider.interfaces import AttnBackend, DrafterBuilder, GraphRunner, KVMemory, Target
from outrider.kv import PagedKVCache, PagedMemory, PagePool
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import AttentionSpec, HiddenTap, Role, SamplingParams
from outrider.types.request import Request
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.tape import TapeMedium, tape_runner
from tests.support.engines import drive
from tests.support.media import AgainMedium
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import CPU, ToySizes, ToyStack

__all__ = [
    "BUILDERS",
    "OPTIONS",
    "PHASES",
    "REQUESTS",
    "SAMPLED",
    "SMALL",
    "STEPS",
    "TARGET",
    "TOKENS",
    "KeptMemory",
    "engine",
    "outcome",
    "requests",
    "runner",
    "tapes",
]

SIZES = ToySizes(max_positions=150)
OPTIONS = EngineOptions(max_batch_size=3, page_size=4, max_prefill_tokens=40, max_length=150)
SMALL = EngineOptions(max_batch_size=2, page_size=4, max_prefill_tokens=40, max_length=150)
TOKENS, REQUESTS = token_buckets((4, 16, 64)), request_buckets((1, 2, 4))

STACK = ToyStack(SIZES)
TARGET = Target(STACK, STACK.weights)
DRAFT = ToyDraft(TARGET, taps=(HiddenTap.at(1), HiddenTap.final_norm()), recurrent=True, max_positions=150)
BUILDERS: Mapping[str, DrafterBuilder | None] = {
    "off": None,
    "chain": ChainBuilder(DRAFT, 3),
    "tree": TreeBuilder(DRAFT, 2, 2, 4),
    "static": StaticTreeBuilder(DRAFT, (0, 0, 1)),
    "ngram": NgramBuilder(3),
}
STEPS = {"rounds": Steps(), "phases": Steps(rounds=False), "segments": Steps(rounds=False, phases=False)}
PHASES = STEPS["phases"]
SAMPLED = SamplingParams(temperature=0.8, seed=5)


def runner(
    steps: Steps | None = None, role: Role = Role.BOTH, full: str | None = None, *, on_demand: bool = True
) -> LadderRunner:
    options = GraphOptions(REQUESTS, TOKENS, role, on_demand)
    return LadderRunner("again", (AgainMedium(full),), steps, options)


def tapes() -> LadderRunner:
    return tape_runner(GraphOptions(REQUESTS, TOKENS, poison=True), medium=TapeMedium(debug=True))


class KeptMemory(KVMemory):
    """Memory of an engine whose caches can be looked at."""

    def __init__(self, slack: int) -> None:
        pages_per_row = -(-(150 + slack) // 4)
        self.memory = PagedMemory(3, pages_per_row, 3 * pages_per_row + 2, 4, CPU)
        self.caches: list[tuple[int, PagedKVCache]] = []

    @property
    def pages(self) -> PagePool:
        return self.memory.pages

    def cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> PagedKVCache:
        made = self.memory.cache(layers, dtype)
        self.caches.append((len(layers), made))
        return made

    def owned(self) -> list[Tensor]:
        """All keys and values but those of the trash page."""
        slots = slice(2 * 4, None)
        return [
            part[slots].clone()
            for count, cache in self.caches
            for layer in range(count)
            for part in (cache.keys(layer), cache.values(layer))
        ]


def engine(
    runner: GraphRunner,
    builder: DrafterBuilder | None = BUILDERS["chain"],
    *,
    target: Target = TARGET,
    options: EngineOptions = OPTIONS,
    attention: AttnBackend | None = None,
    memory: KVMemory | None = None,
) -> Engine:
    backend = SdpaBackend() if attention is None else attention
    return build_engine(target, builder, attention=backend, runner=runner, options=options, memory=memory)


def requests(sampling: SamplingParams) -> list[Request]:
    """Prompts of every bucket, cut and not, whose sequences pass the first bucket of lengths."""
    prompts = [(5, 9, 2), tuple(range(1, 14)), tuple(range(1, 40)) * 3, (7,) * 25, (3, 1), (8,) * 50]
    counts = [6, 20, 33, 9, 14, 12]
    return [Request(prompt, count, sampling, eos_ids=()) for prompt, count in zip(prompts, counts, strict=True)]


def outcome(made: Engine, wanted: Sequence[Request]) -> list[tuple[int, ...]]:
    ids = [made.submit(request) for request in wanted]
    done = drive(made)
    return [tuple(done[request_id].token_ids) for request_id in ids]
