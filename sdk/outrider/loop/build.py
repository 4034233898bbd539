"""`build_engine`: from a target and a drafter to a running engine, every fit checked once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from attrs import frozen

from outrider.binding import check_attention
from outrider.drafting.chain import ChainDrafter
from outrider.drafting.memory import DraftMemory
from outrider.drafting.none import NoDrafter
from outrider.errors import BindError, ConfigurationError, Problems
from outrider.interfaces import (
    NUM_RESERVED_PAGES,
    AttnBackend,
    BoundDraft,
    Drafter,
    GraphRunner,
    KVCache,
    Target,
    Verifier,
)
from outrider.kv import PagedKVCache, PagePool
from outrider.loop.core import DecodeCore, TargetBody
from outrider.loop.engine import Engine, EngineLimits
from outrider.loop.rows import RowStore
from outrider.types import AttentionSpec
from outrider.verification.greedy import GreedyVerifier

__all__ = ["ChainBuilder", "DrafterBuilder", "DrafterParts", "EngineOptions", "NoDraftBuilder", "build_engine"]

_CPU_KV_BYTES = 4 << 30
_CUDA_KV_SHARE = 0.8


@frozen
class EngineOptions:
    """How large an engine is.

    ``max_length`` ``None`` takes the target's whole context. ``num_pages`` ``None`` holds ``max_batch_size`` sequences of
    full length, or as many as memory allows (80% of the free device memory, 4 GiB on a CPU). ``rounds_in_flight`` ``None``
    lets the host run one round behind on CUDA, and reads at once on a CPU.
    """

    max_batch_size: int = 8
    page_size: int = 16
    max_length: int | None = None
    num_pages: int | None = None
    max_prefill_tokens: int = 8192
    max_stop_ids: int = 8
    rounds_in_flight: int | None = None


@frozen(eq=False)
class DrafterParts:
    """What an engine gives a drafter to build itself from."""

    num_rows: int
    target: Target
    attention: AttnBackend
    runner: GraphRunner
    page_size: int
    num_pages: int

    def kv_cache(self, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> KVCache:
        """KV memory for the drafter's own layers, in the pages of the engine's page table."""
        return PagedKVCache(layers, self.num_pages, self.page_size, dtype, self.target.stack.spec.device)


class DrafterBuilder(Protocol):
    """Makes a drafter for one engine."""

    @property
    @abstractmethod
    def slack(self) -> int:
        """Slots past a sequence that one round may write (drafted tokens in the target, scratch in the draft)."""
        ...

    @property
    @abstractmethod
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype] | None:
        """Layers and dtype of the KV it needs, for sizing the memory; ``None`` without a model."""
        ...

    @abstractmethod
    def build(self, parts: DrafterParts) -> Drafter:
        """The drafter.

        Raises:
            BindError: draft and backends do not fit.
        """
        ...


@frozen(eq=False)
class NoDraftBuilder:
    """Plain decoding."""

    @property
    def slack(self) -> int:
        """Only the root."""
        return 1

    @property
    def kv_layers(self) -> None:
        """No model."""

    def build(self, parts: DrafterParts) -> Drafter:
        """A drafter that proposes nothing."""
        return NoDrafter(parts.num_rows, parts.target.stack.spec.device)


@frozen(eq=False)
class ChainBuilder:
    """Chains of ``length`` tokens from ``draft``."""

    draft: BoundDraft
    length: int

    @property
    def slack(self) -> int:
        """Root and drafted tokens."""
        return self.length + 1

    @property
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype]:
        """Those of the draft."""
        return self.draft.spec.layers, self.draft.spec.dtype

    def build(self, parts: DrafterParts) -> Drafter:
        """A chain drafter.

        Raises:
            BindError: the attention backend cannot serve the draft's layers.
            ConfigurationError: the length is below 1 or above what the draft was trained for.
        """
        spec = self.draft.spec
        limit = spec.max_draft_tokens
        if self.length < 1 or (limit is not None and self.length > limit):
            upper = "" if limit is None else f" to {limit} (the draft's limit)"
            raise ConfigurationError(f"num_draft_tokens is {self.length}, allowed is 1{upper}")
        with Problems(f"attention backend and draft '{spec.name}' do not fit", BindError) as problems:
            for problem in check_attention(
                parts.attention.capabilities, spec.layers, spec.dtype, spec.device, parts.page_size, needs_tree=False
            ):
                problems.add(problem)
        kv = parts.kv_cache(spec.layers, spec.dtype)
        memory = DraftMemory(self.draft, kv, parts.attention, parts.runner, parts.num_rows)
        return ChainDrafter(memory, self.length, parts.num_rows)


def build_engine(
    target: Target,
    drafter: DrafterBuilder | None = None,
    *,
    attention: AttnBackend,
    runner: GraphRunner,
    verifier: Verifier | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine for ``target`` with its KV memory, page table and drafter.

    Raises:
        BindError: target, draft and attention backend do not fit; all problems at once.
        ConfigurationError: sizes that cannot work.
    """
    options = EngineOptions() if options is None else options
    builder: DrafterBuilder = NoDraftBuilder() if drafter is None else drafter
    spec = target.stack.spec
    _check_options(options, target)
    with Problems(f"attention backend and target '{spec.name}' do not fit", BindError) as problems:
        for problem in check_attention(
            attention.capabilities, spec.layers, spec.dtype, spec.device, options.page_size, needs_tree=False
        ):
            problems.add(problem)
    context = spec.max_positions if options.max_length is None else options.max_length
    pages_per_row = -(-(context + builder.slack) // options.page_size)
    num_pages = _num_pages(options, pages_per_row, target, builder)
    pages = PagePool(options.max_batch_size, pages_per_row, num_pages, options.page_size, spec.device)
    made = builder.build(DrafterParts(options.max_batch_size, target, attention, runner, options.page_size, num_pages))
    _check_taps(target, made)
    core = DecodeCore(
        target=target,
        drafter=made,
        verifier=GreedyVerifier() if verifier is None else verifier,
        attention=attention,
        runner=runner,
        kv=PagedKVCache(spec.layers, num_pages, options.page_size, spec.dtype, spec.device),
        body=TargetBody(target, made.taps),
        max_prefill_tokens=options.max_prefill_tokens,
    )
    rows = RowStore(
        num_rows=options.max_batch_size,
        context_length=context,
        slack=made.shape.depth + 2,
        max_stop_ids=options.max_stop_ids,
        vocab_size=spec.vocab_size,
        pages=pages,
        device=spec.device,
    )
    in_flight = options.rounds_in_flight
    limits = EngineLimits(
        max_batch_size=options.max_batch_size,
        context_length=context,
        slack=builder.slack,
        max_stop_ids=options.max_stop_ids,
        rounds_in_flight=int(spec.device.type == "cuda") if in_flight is None else in_flight,
    )
    return Engine(core, rows, pages, limits)


def _check_options(options: EngineOptions, target: Target) -> None:
    spec = target.stack.spec
    with Problems("the engine cannot be built", ConfigurationError) as problems:
        for name, value in (
            ("max_batch_size", options.max_batch_size),
            ("page_size", options.page_size),
            ("max_prefill_tokens", options.max_prefill_tokens),
            ("max_stop_ids", options.max_stop_ids),
        ):
            if value < 1:
                problems.add(f"{name} is {value}, at least 1 is needed")
        if options.max_length is not None and not 2 <= options.max_length <= spec.max_positions:
            problems.add(f"max_length is {options.max_length}, allowed is 2 to {spec.max_positions} ({spec.name})")
        if len(target.eos_ids) > options.max_stop_ids:
            problems.add(f"{spec.name} has {len(target.eos_ids)} end ids, max_stop_ids is {options.max_stop_ids}")


def _check_taps(target: Target, drafter: Drafter) -> None:
    layers = target.stack.spec.num_layers
    with Problems("the drafter asks for features the target does not have", BindError) as problems:
        for tap in drafter.taps:
            if not tap.exists_in(layers):
                problems.add(f"{tap}; {target.stack.spec.name} has boundaries 0 to {layers} and final_norm")


def _num_pages(options: EngineOptions, pages_per_row: int, target: Target, builder: DrafterBuilder) -> int:
    if options.num_pages is not None:
        if options.num_pages <= NUM_RESERVED_PAGES:
            raise ConfigurationError(
                f"num_pages is {options.num_pages}, more than the {NUM_RESERVED_PAGES} reserved ones are needed"
            )
        return options.num_pages
    spec = target.stack.spec
    wanted = options.max_batch_size * pages_per_row + NUM_RESERVED_PAGES
    per_page = PagedKVCache.bytes_needed(spec.layers, 1, options.page_size, spec.dtype)
    if builder.kv_layers is not None:
        layers, dtype = builder.kv_layers
        per_page += PagedKVCache.bytes_needed(layers, 1, options.page_size, dtype)
    budget = _CPU_KV_BYTES
    if spec.device.type == "cuda":
        budget = round(torch.cuda.mem_get_info(spec.device)[0] * _CUDA_KV_SHARE)
    return max(min(wanted, budget // per_page), NUM_RESERVED_PAGES + 1)
