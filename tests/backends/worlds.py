"""Requests with a cached past, for running a body of the trained pair by different runners on equal memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.conformance.paged import differs
from outrider.drafting.bodies import DraftExtendBody, DraftStepBody
from outrider.interfaces import NUM_RESERVED_PAGES, BoundDraft, GraphBody, GraphRunner, Target
from outrider.kv import PagedKVCache, PagePool, slots_of_rows
from outrider.loop.core import TargetBody
from outrider.planning import PlanCache
from outrider.types import AttnBatch, BodyCalls, CaptureHiddenMode, Phase, PhaseShape
from outrider_backends.sdpa import SdpaBackend
from tests.support.pair import TrainedPair, trained_pair

__all__ = ["PASTS", "RAGGED", "TREE_PARENTS", "UNIFORM", "Call", "PairWorld", "close", "same"]

PASTS = [(0, 3, 9, 17, 5, 1, 28, 2), (30, 30, 1, 2, 30, 0, 4, 9), (40, 5, 0, 26, 7, 7, 7, 40)]
"""Lengths of the pasts of up to eight requests, call after call."""

TREE_PARENTS = (-1, 0, 0, 1, 1, 2)
"""Parents of root and drafted nodes: two branches, one of which branches again."""

_PAGE_SIZE = 4
_PAGES_PER_ROW = 20


@frozen
class _Kind:
    """``queries`` ``None``: a prompt, whose requests differ in length. ``last``: one row per request is wanted."""

    phase: Phase
    of_draft: bool
    body: Callable[[Target, BoundDraft], GraphBody]
    queries: int | None
    tree: bool = False
    last: bool = False


def _target(target: Target, draft: BoundDraft) -> GraphBody:
    return TargetBody(target, draft.spec.taps)


def _bare_target(target: Target, draft: BoundDraft) -> GraphBody:
    return TargetBody(target, ())


def _extend(target: Target, draft: BoundDraft) -> GraphBody:
    return DraftExtendBody(draft)


def _step(target: Target, draft: BoundDraft) -> GraphBody:
    return DraftStepBody(draft)


_KINDS: Mapping[str, _Kind] = {
    "decode": _Kind(Phase.TARGET_DECODE, False, _target, 1),
    "decode without taps": _Kind(Phase.TARGET_DECODE, False, _bare_target, 1),
    "verify": _Kind(Phase.TARGET_VERIFY, False, _target, 5),
    "verify tree": _Kind(Phase.TARGET_VERIFY, False, _target, len(TREE_PARENTS), tree=True),
    "extend": _Kind(Phase.DRAFT_EXTEND, True, _extend, 5, last=True),
    "step": _Kind(Phase.DRAFT_STEP, True, _step, 1),
    "step tree": _Kind(Phase.DRAFT_STEP, True, _step, len(TREE_PARENTS), tree=True),
    "prefill": _Kind(Phase.TARGET_PREFILL, False, _target, None),
    "draft prefill": _Kind(Phase.DRAFT_EXTEND, True, _extend, None, last=True),
    "ragged verify": _Kind(Phase.TARGET_VERIFY, False, _target, None),
}

UNIFORM = tuple(name for name, kind in _KINDS.items() if kind.queries is not None)
"""Every way the loop runs a body with equally many queries per request."""

RAGGED = tuple(name for name, kind in _KINDS.items() if kind.queries is None)
"""Prompts, and what an engine of another's may ask: requests with different numbers of queries."""


@frozen(eq=False)
class Call:
    """What a runner is given; of the outputs, ``real`` leading rows are compared."""

    prefixes: tuple[int, ...]
    inputs: dict[str, Tensor]
    batch: AttnBatch
    rows: Tensor | None
    real: int


class PairWorld:
    """One phase of a trained pair over KV memory of its own; equal seeds give equal worlds."""

    def __init__(self, name: str, seed: int = 0, pair: TrainedPair | None = None, num_rows: int = 8) -> None:
        pair = trained_pair() if pair is None else pair
        self._kind = kind = _KINDS[name]
        self._generator = torch.Generator().manual_seed(seed)
        spec = pair.target.stack.spec
        self._device = device = spec.device
        self.phase: Phase = kind.phase
        self.body: GraphBody = kind.body(pair.target, pair.eagle3)
        layers = pair.eagle3.spec.layers if kind.of_draft else spec.layers
        num_pages = NUM_RESERVED_PAGES + num_rows * _PAGES_PER_ROW
        self.kv = PagedKVCache(layers, num_pages, _PAGE_SIZE, torch.float32, device)
        self.pool = PagePool(num_rows, _PAGES_PER_ROW, num_pages, _PAGE_SIZE, device)
        for layer in range(len(layers)):
            for part in (self.kv.keys(layer), self.kv.values(layer)):
                past = part[NUM_RESERVED_PAGES * _PAGE_SIZE :]
                past.copy_(self._random(*past.shape))
        self.num_layers = len(layers)
        self.planner = PlanCache(SdpaBackend(), layers, self.kv)
        self._num_rows = num_rows

    def call(
        self, prefixes: Sequence[int], queries: Sequence[int] | None = None, without_pages: Sequence[int] = ()
    ) -> Call:
        """A call of as many requests as ``prefixes``, each with so long a past, on pages of its own; inputs are random.

        ``queries``: how many each request has, where it is not the phase that says so. ``without_pages``: rows that have none.
        """
        kind, count = self._kind, len(prefixes)
        lens = [1] * count if queries is None else list(queries)
        if kind.queries is not None:
            lens = [kind.queries] * count
        for row in range(self._num_rows):
            self.pool.release(row)
        for row, (prefix, more) in enumerate(zip(prefixes, lens, strict=True)):
            assert row in without_pages or self.pool.reserve(row, prefix + more)
        batch = self._batch(prefixes, lens)
        depths = [_depths(n) if kind.tree else list(range(n)) for n in lens]
        positions = torch.tensor([p + d for p, ds in zip(prefixes, depths, strict=True) for d in ds])
        ends = torch.tensor(lens).cumsum(0)
        rows = None
        if kind.last:  # not always the last one: what was accepted ends anywhere
            back = torch.arange(count) % torch.tensor(lens).clamp(min=1)
            rows = (ends - 1 - back).clamp(min=0).to(self._device)
        inputs = {
            slot.name: positions.to(self._device)
            if slot.name == "positions"
            else self._random(sum(lens), *slot.trailing)
            for slot in self.body.inputs
        }
        return Call(tuple(prefixes), inputs, batch, rows, count if kind.last else sum(lens))

    def shape(self, call: Call) -> PhaseShape:
        """The shape of ``call``."""
        return PhaseShape.of(call.batch, CaptureHiddenMode.LAST if self._kind.last else CaptureHiddenMode.FULL)

    def run(self, runner: GraphRunner, call: Call) -> dict[str, Tensor]:
        """Outputs and all that is cached afterwards (the trash page aside), copied."""
        outputs = runner.run(self.phase, self.body, call.inputs, call.batch, self.planner, call.rows)
        return self._found(outputs, call)

    def padded(self, call: Call, requests: int) -> Call:
        """``call`` with rows without pages after it, up to ``requests``: what a graph with its attention runs, spelt out."""
        assert self._kind.queries is not None
        more = requests - call.batch.num_requests
        lengths = [*call.prefixes, *[0] * more]
        batch = evolve(self._batch(lengths, [self._kind.queries] * requests), max_length=call.batch.max_length)
        return evolve(call, inputs=_more_rows(call.inputs, more * self._kind.queries), batch=batch)

    def run_in_pieces(self, call: Call, tokens: int) -> dict[str, Tensor]:
        """``call`` directly, rows of zeros up to ``tokens`` after it, of which only the real ones attend.

        What a graph in segments runs, spelt out.
        """
        count = call.batch.num_tokens
        plan = self.planner.plan(call.batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = q.new_zeros(tokens, q.shape[1], v.shape[2])
            out[:count] = plan.attend(layer, q[:count], k[:count], v[:count])
            return out

        with torch.inference_mode():
            outputs = self.body(_more_rows(call.inputs, tokens - count), BodyCalls(attend))
            if call.rows is not None:
                outputs = {name: tensor.index_select(0, call.rows) for name, tensor in outputs.items()}
            return self._found(outputs, call)

    def cached(self) -> dict[str, Tensor]:
        """A copy of every key and value that may be read."""
        trash = slice(_PAGE_SIZE, 2 * _PAGE_SIZE)
        found: dict[str, Tensor] = {}
        for layer in range(self.num_layers):
            for name, part in (("keys", self.kv.keys(layer)), ("values", self.kv.values(layer))):
                found[f"{name} {layer}"] = part.clone()
                found[f"{name} {layer}"][trash] = 0.0
        return found

    def _found(self, outputs: Mapping[str, Tensor], call: Call) -> dict[str, Tensor]:
        return {name: tensor[: call.real].clone() for name, tensor in outputs.items()} | self.cached()

    def _batch(self, prefixes: Sequence[int], lens: Sequence[int]) -> AttnBatch:
        kind, count, device = self._kind, len(prefixes), self._device
        table = self.pool.page_table[:count]
        row_of = torch.tensor([row for row, n in enumerate(lens) for _ in range(n)], device=device)
        places = torch.tensor([p + i for p, n in zip(prefixes, lens, strict=True) for i in range(n)], device=device)
        mask = depths = None
        if kind.tree:
            mask, depths = (part.to(device).expand(count, *part.shape) for part in _tree(lens[0]))
        return AttnBatch(
            query_lens=tuple(lens),
            prefix_lens=torch.tensor(list(prefixes), device=device),
            page_table=table,
            slots=slots_of_rows(table, row_of, places, _PAGE_SIZE),
            max_length=max(p + n for p, n in zip(prefixes, lens, strict=True)),
            host_prefix_lens=tuple(prefixes) if kind.queries is None else None,
            tail_mask=mask,
            query_depths=depths,
            tail_depths=depths,
        )

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._device)


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Whether two runs gave the same, bit for bit."""
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Whether two runs gave the same but for rounding."""
    return not any(differs(found[name], expected[name]) for name in expected)


def _more_rows(inputs: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: torch.cat([part, part.new_zeros(count, *part.shape[1:])]) for name, part in inputs.items()}


def _tree(nodes: int) -> tuple[Tensor, Tensor]:
    """``[N, N]`` who sees whom, and the depth of each node."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for node, parent in enumerate(TREE_PARENTS):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask, torch.tensor(_depths(nodes))


def _depths(nodes: int) -> list[int]:
    depths: list[int] = []
    for parent in TREE_PARENTS[:nodes]:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths
