"""`build_engine`: from a target and a drafter to a running engine, every fit checked once."""

from __future__ import annotations

import torch
from attrs import frozen

from outrider.binding import check_attention
from outrider.drafting.builders import NoDraftBuilder
from outrider.drafting.feedback import RoundListeners
from outrider.drafting.none import NoDrafter
from outrider.errors import BindError, ConfigurationError, Problems
from outrider.interfaces import (
    NUM_RESERVED_PAGES,
    AttnBackend,
    Drafter,
    DrafterBuilder,
    DrafterParts,
    GraphRunner,
    KVMemory,
    Target,
    Verifier,
)
from outrider.kv import PagedKVCache, PagedMemory
from outrider.loop.core import DecodeCore, TargetBody
from outrider.loop.engine import Engine
from outrider.loop.limits import EngineLimits
from outrider.loop.rows import RowStore
from outrider.planning import PlanCache
from outrider.types.counts import counted
from outrider.verification.exact import ExactVerifier

__all__ = ["EngineOptions", "build_engine"]

_CPU_KV_BYTES = 4 << 30
_CUDA_KV_SHARE = 0.8
_MOST_SLACK = 1 << 30


@frozen
class EngineOptions:
    """How large an engine is.

    ``max_length`` ``None`` takes the target's whole context. ``num_pages`` ``None`` holds ``max_batch_size`` sequences of
    full length, or as many as memory allows (80% of the free device memory, 4 GiB on a CPU). ``rounds_in_flight`` ``None``
    lets the host run one round behind on CUDA, and reads at once on a CPU. ``max_prefill_tokens``: the most tokens of prompts
    in one pass; longer ones are cut, and requests that run get a round after each pass.
    """

    max_batch_size: int = 8
    page_size: int = 16
    max_length: int | None = None
    num_pages: int | None = None
    max_prefill_tokens: int = 8192
    max_stop_ids: int = 8
    rounds_in_flight: int | None = None


def build_engine(
    target: Target,
    drafter: DrafterBuilder | None = None,
    *,
    attention: AttnBackend,
    runner: GraphRunner,
    verifier: Verifier | None = None,
    memory: KVMemory | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine for ``target`` with its KV memory, page table and drafter.

    ``memory``: KV memory that the caller owns; its page size and number of pages then count, not those of ``options``.

    Raises:
        BindError: target, draft, attention backend and verifier do not fit; all problems at once.
        ConfigurationError: sizes that cannot work.
        CapacityError: the device has not that much memory.
    """
    options = EngineOptions() if options is None else options
    builder: DrafterBuilder = NoDraftBuilder() if drafter is None else drafter
    spec = target.stack.spec
    _check_options(options, target, builder)
    with Problems(f"attention backend and target '{spec.name}' do not fit", BindError) as problems:
        for problem in check_attention(
            attention.capabilities,
            spec.layers,
            spec.dtype,
            spec.device,
            options.page_size if memory is None else memory.pages.page_size,
            needs_tree=builder.needs_tree,
        ):
            problems.add(problem)
    context = spec.max_positions if options.max_length is None else options.max_length
    kv_memory = _own_memory(options, context, target, builder) if memory is None else memory
    _check_memory(kv_memory, options.max_batch_size, context + builder.slack)
    feedback = RoundListeners()
    # One row more than requests: `DecodeCore.spare_row`.
    made = builder.build(DrafterParts(options.max_batch_size + 1, target, attention, runner, kv_memory, feedback))
    verifier = ExactVerifier() if verifier is None else verifier
    _check_parts(target, made, verifier)
    kv = kv_memory.cache(spec.layers, spec.dtype)
    core = DecodeCore(
        target=target,
        drafter=made,
        verifier=verifier,
        plans=PlanCache(attention, spec.layers, kv),
        runner=runner,
        kv=kv,
        body=TargetBody(target, made.taps),
        drafts=made.shape.depth > 0,
        spare_row=options.max_batch_size,
        nothing=NoDrafter(options.max_batch_size, spec.device),
    )
    rows = RowStore(
        num_rows=options.max_batch_size,
        context_length=context,
        slack=made.shape.depth + 2,
        max_stop_ids=options.max_stop_ids,
        vocab_size=spec.vocab_size,
        pages=kv_memory.pages,
        device=spec.device,
    )
    in_flight = options.rounds_in_flight
    limits = EngineLimits(
        max_batch_size=options.max_batch_size,
        context_length=context,
        slack=builder.slack,
        draft_depth=made.shape.depth,
        max_prefill_tokens=options.max_prefill_tokens,
        max_stop_ids=options.max_stop_ids,
        rounds_in_flight=int(spec.device.type == "cuda") if in_flight is None else in_flight,
    )
    return Engine(core, rows, kv_memory.pages, limits, feedback)


def _check_options(options: EngineOptions, target: Target, builder: DrafterBuilder) -> None:
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
        if options.rounds_in_flight is not None and options.rounds_in_flight < 0:
            problems.add(f"rounds_in_flight is {options.rounds_in_flight}, 0 (read at once) or more is needed")
        if options.max_length is not None and not 2 <= options.max_length <= spec.max_positions:
            problems.add(f"max_length is {options.max_length}, allowed is 2 to {spec.max_positions} ({spec.name})")
        if builder.slack > _MOST_SLACK:
            problems.add(
                f"a round would write {builder.slack} tokens past a sequence, at most {_MOST_SLACK}; draft fewer"
            )
        if len(target.eos_ids) > options.max_stop_ids:
            problems.add(f"{spec.name} has {len(target.eos_ids)} end ids, max_stop_ids is {options.max_stop_ids}")


def _check_parts(target: Target, drafter: Drafter, verifier: Verifier) -> None:
    name, layers = target.stack.spec.name, target.stack.spec.num_layers
    with Problems(f"drafter, verifier and target '{name}' do not fit", BindError) as problems:
        for tap in drafter.taps:
            if not tap.exists_in(layers):
                problems.add(f"{tap} is asked, the target has boundaries 0 to {layers} and final_norm")
        if verifier.chains_only and not drafter.shape.is_chain:
            problems.add(
                f"the verifier is defined for chains only, the drafter proposes a tree of {drafter.shape.num_tokens} tokens "
                f"in {drafter.shape.depth} levels; draft a chain, or verify with ExactVerifier or RejectionVerifier"
            )
        if target.rollback is not None and drafter.shape.num_tokens > 0:
            problems.add(
                f"drafting {counted(drafter.shape.num_tokens, 'token')} a round is asked of a target that keeps state between "
                "passes, which rejected tokens would spoil (Target.rollback); this loop undoes keys and values only, and tells "
                "a stack neither whose rows it is given nor when they move. Such a target can be decoded without a drafter, "
                "one request at a time (max_batch_size=1), on the eager runner"
            )


def _own_memory(options: EngineOptions, context: int, target: Target, builder: DrafterBuilder) -> KVMemory:
    pages_per_row = -(-(context + builder.slack) // options.page_size)
    num_pages = _num_pages(options, pages_per_row, target, builder)
    device = target.stack.spec.device
    return PagedMemory(options.max_batch_size, pages_per_row, num_pages, options.page_size, device)


def _check_memory(memory: KVMemory, num_rows: int, num_slots: int) -> None:
    rows, pages = memory.pages.page_table.shape
    with Problems("the KV memory does not fit the engine", ConfigurationError) as problems:
        if rows < num_rows:
            problems.add(f"its page table has {rows} rows, max_batch_size is {num_rows}")
        if pages * memory.pages.page_size < num_slots:
            problems.add(
                f"a row of its page table holds {pages * memory.pages.page_size} slots; {num_slots} are needed for a whole "
                "context and what a round writes past it; give it more pages, or lower max_length"
            )


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
