"""A toy language in which every joint probability is known, and rounds of decoding for many rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from outrider.interfaces import Verifier
from outrider.sampling import NodePaths, draw_children, warp_draft_logits
from outrider.types import (
    DecodeState,
    DraftDistribution,
    DraftVocab,
    Proposal,
    SamplingFeatures,
    SamplingParams,
    TreeShape,
)
from tests.sampling.toys import chi_square_p, decode_state, reference_warp, rows_of, select_rows

V = 5
NUM_ROWS = 200_000
PREFIX = (1, 3)
VOCAB = DraftVocab(size=4, target_size=V, target_ids=torch.tensor([4, 1, 0, 3]))
"""The draft cannot say 2."""

PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.2, top_k=4, top_p=0.9),
    SamplingParams(temperature=0.0),
)


def table(seed: int) -> Tensor:
    """Logits ``[V, V, V]`` of a token after the two before it."""
    return torch.randn(V, V, V, generator=torch.Generator().manual_seed(seed)) * 1.2


TARGET = table(0)
DRAFT = TARGET + table(1)


@frozen(eq=False)
class Topology:
    """The same tree for every row: parents of the nodes, level by level, each node with ``width`` children or none."""

    parents: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...] = field()
    """Nodes of each level that are expanded."""
    width: int

    @property
    def shape(self) -> TreeShape:
        return TreeShape(len(self.parents), len(self.levels), self.parents == tuple(range(len(self.parents))))


CHAIN = Topology(parents=(0, 1, 2), levels=((0,), (1,), (2,)), width=1)
BUSH = Topology(parents=(0, 0, 1, 1, 2, 2), levels=((0,), (1, 2)), width=2)
NOTHING = Topology(parents=(), levels=(), width=0)


def rows(params: Sequence[SamplingParams] = PARAMS, num_rows: int = NUM_ROWS) -> DecodeState:
    """``num_rows`` requests that take turns with ``params``, each with a seed of its own."""
    features = SamplingFeatures(sampled=True, top_k=True, top_p=True)
    state = decode_state([PREFIX] * len(params), params, V, spare=12, stale=0, features=features)
    state = rows_of(state, list(range(len(params))) * (num_rows // len(params)))
    return evolve(state, sampling=evolve(state.sampling, seeds=torch.arange(num_rows)))


def contexts(state: DecodeState, tokens: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """The token before each node ``[B, M]`` and the node's own ``[B, M]``."""
    own = torch.cat([state.roots[:, None], tokens], dim=1)
    before_root = state.tokens.gather(1, state.lengths[:, None] - 1)
    return torch.cat([before_root, own.gather(1, parents)], dim=1), own


def target_logits(state: DecodeState, proposal: Proposal) -> Tensor:
    before, own = contexts(state, proposal.tokens, proposal.parents)
    return TARGET[before, own]


def draft(state: DecodeState, topology: Topology, draft_lens: Tensor, *, sampled: bool) -> Proposal:
    """A tree drawn from the draft's warped distribution; declared one-hot unless ``sampled``."""
    batch, drafted = state.num_rows, len(topology.parents)
    parents = torch.tensor(topology.parents, dtype=torch.int64).expand(batch, -1)
    tokens = torch.zeros(batch, drafted, dtype=torch.int64)
    probs = torch.zeros(batch, drafted, V)
    ancestors = torch.eye(drafted + 1, dtype=torch.bool)
    depths = torch.zeros(drafted + 1, dtype=torch.int64)
    for node, parent in enumerate(topology.parents, start=1):
        ancestors[node] |= ancestors[parent]
        depths[node] = depths[parent] + 1
    for level, nodes in enumerate(topology.levels):
        before, own = contexts(state, tokens, parents)
        logits = DRAFT[before, own][:, list(nodes)][..., VOCAB.target_ids]
        paths = NodePaths(
            depths=torch.full((batch, len(nodes)), level),
            tokens=tokens,
            on_path=ancestors[list(nodes), 1:].expand(batch, -1, -1),
            num_levels=len(topology.levels),
        )
        drawn = draw_children(
            warp_draft_logits(logits, state, paths, VOCAB), state, VOCAB, level=level, count=topology.width
        )
        children = [i for i, parent in enumerate(topology.parents) if parent in nodes]
        tokens[:, children] = drawn.target_ids.flatten(1)
        probs[:, children] = drawn.probs.repeat_interleave(topology.width, dim=1)
    return Proposal(
        tokens=tokens,
        parents=parents,
        depths=depths.expand(batch, -1),
        ancestors=ancestors.expand(batch, -1, -1),
        draft_lens=draft_lens,
        shape=topology.shape,
        distribution=DraftDistribution(probs, warped=True) if sampled else None,
    )


def generate(
    verifier: Verifier,
    state: DecodeState,
    topology: Topology,
    *,
    sampled: bool,
    num_tokens: int = 3,
    draft_lens: Tensor | None = None,
) -> Tensor:
    """The first ``num_tokens`` tokens ``[B, num_tokens]`` of every row, in as many rounds as the slowest needs."""
    start = len(PREFIX)
    lens = draft_lens if draft_lens is not None else torch.full_like(state.lengths, len(topology.levels))
    result = torch.zeros(state.num_rows, num_tokens, dtype=torch.int64)
    rows_left = torch.arange(state.num_rows)
    end = state.tokens.shape[1] - 1
    while len(rows_left) > 0:
        proposal = draft(state, topology, lens, sampled=sampled)
        accepted = verifier.accept(proposal, target_logits(state, proposal), state)
        column = torch.arange(accepted.tokens.shape[1])
        # Whatever is not emitted goes to the last place, which nobody reads.
        places = torch.where(column <= accepted.counts[:, None], state.lengths[:, None] + 1 + column, end)
        tokens = state.tokens.scatter(1, places, accepted.tokens)
        lengths = state.lengths + accepted.counts + 1
        result[rows_left] = tokens[:, start : start + num_tokens]
        unfinished = (lengths + 1 < start + num_tokens).nonzero().flatten()
        rows_left, lens = rows_left[unfinished], lens[unfinished]
        state = evolve(state, tokens=tokens, lengths=lengths, roots=tokens.gather(1, lengths[:, None]).squeeze(1))
        state = select_rows(state, unfinished)
    return result


def joint(params: SamplingParams, num_tokens: int = 3) -> Tensor:
    """Probability ``[V] * num_tokens`` of every continuation of the prefix, by transformers' processors."""
    step = torch.zeros(V, V, V, dtype=torch.float64)
    for before in range(V):
        for last in range(V):
            scores = reference_warp(TARGET[before, last], [before, last], 2, params).double()
            best = torch.nn.functional.one_hot(scores.argmax(), V).double()
            step[before, last] = best if params.greedy else scores.softmax(0)
    result = step[PREFIX]
    pairs = result[None, :].expand(V, V) * (torch.arange(V) == PREFIX[1])[:, None]
    for _ in range(num_tokens - 1):
        grown = pairs[..., None] * step.expand(*pairs.shape[:-2], V, V, V)
        result = grown
        pairs = grown
    return pairs[PREFIX[1]]


def p_values(tokens: Tensor, params: Sequence[SamplingParams] = PARAMS) -> list[float]:
    """For each setting, the p-value of its rows' tokens under the target's joint distribution."""
    num_tokens = tokens.shape[1]
    weights = V ** torch.arange(num_tokens - 1, -1, -1)
    found: list[float] = []
    for turn, one in enumerate(params):
        mine = tokens[turn :: len(params)]
        counts = torch.bincount((mine * weights).sum(dim=1), minlength=V**num_tokens)
        found.append(chi_square_p(counts, joint(one, num_tokens).flatten() * len(mine)))
    return found
