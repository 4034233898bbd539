"""`StaticTreeDrafter`: a tree whose shape is given beforehand as a list of parents.

Source: Cai et al. 2024, "Medusa", section 2.3 (sparse trees); Li et al. 2024, "EAGLE", section 4.

Shape suffixes: B requests, N drafted tokens, M = N + 1 nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.drafting.ancestors import ancestors_of
from outrider.drafting.choosing import ProposalMode, draft_scores, level_paths
from outrider.drafting.limits import draft_lengths
from outrider.drafting.memory import DraftMemory
from outrider.drafting.scratch import ScratchLayout
from outrider.errors import ConfigurationError
from outrider.sampling import draw_children
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.proposal import DraftDistribution
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["StaticTreeDrafter", "check_parents"]


def check_parents(parents: Sequence[int]) -> None:
    """Refuse a parent list that is no tree in level order.

    Node i (from 1) has parent ``parents[i - 1]``, an earlier node or the root 0; nodes come level by level.

    Raises:
        ConfigurationError: empty, a parent that is not earlier, or nodes out of level order.
    """
    if not parents:
        raise ConfigurationError("the tree has no node; give at least one parent, e.g. [0] for a chain of one")
    depths = [0]
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise ConfigurationError(f"node {node} has parent {parent}; a parent is an earlier node, 0 to {node - 1}")
        depths.append(depths[parent] + 1)
        if depths[node] < depths[node - 1]:
            raise ConfigurationError(
                f"node {node} stands at depth {depths[node]} after node {node - 1} at depth {depths[node - 1]}; "
                "list the nodes level by level"
            )


@frozen(eq=False)
class _Level:
    """The inner nodes of one level, and how the next level's nodes come from them.

    ``nodes``: node ids that are run. ``parent_rows``: which run node of the level above each comes from. ``mask``: the run
    nodes (in slot order) each sees. ``child_rows``, ``child_ranks``: for each node of the next level, its parent among
    ``nodes`` and its place among the parent's best.
    """

    nodes: tuple[int, ...]
    tokens_at: Tensor
    parent_rows: Tensor
    first_slot: int
    mask: Tensor
    child_rows: Tensor
    child_ranks: Tensor
    max_children: int


class StaticTreeDrafter:
    """Fills a fixed tree: the children of a node are the draft's most probable tokens there, best first."""

    def __init__(
        self,
        memory: DraftMemory,
        parents: Sequence[int],
        num_rows: int,
        mode: ProposalMode = ProposalMode.COUPLED,
    ) -> None:
        """``parents``: node id (0 = root) of the parent of nodes 1..N, level by level.

        Raises:
            ConfigurationError: `check_parents`.
        """
        check_parents(parents)
        self._memory = memory
        self._mode = mode
        device = memory.spec.device
        depths = [0]
        for parent in parents:
            depths.append(depths[parent] + 1)
        self._levels = _plan_levels(parents, depths, device)
        self._shape = TreeShape(
            num_tokens=len(parents),
            depth=max(depths),
            is_chain=list(parents) == list(range(len(parents))),
            scratch_slots=sum(len(level.nodes) for level in self._levels[1:]),
        )
        run_depths = [number for number, level in enumerate(self._levels[1:]) for _ in level.nodes]
        self._scratch = ScratchLayout.tree(run_depths, device)
        parents_1N = torch.tensor([list(parents)], device=device)
        self._parents = parents_1N.expand(num_rows, -1)
        self._depths = torch.tensor([depths], device=device).expand(num_rows, -1)
        self._ancestors = ancestors_of(parents_1N, self._shape.depth).expand(num_rows, -1, -1)

    @property
    def shape(self) -> TreeShape:
        """Static sizes of every proposal."""
        return self._shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """The taps of the draft's spec."""
        return self._memory.spec.taps

    @property
    def runs_on_host(self) -> bool:
        """No: device only."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Run the verified rows through the draft."""
        self._memory.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        """The fixed tree, filled for every row."""
        memory, rows = self._memory, state.num_rows
        hidden = memory.hidden[:rows]
        carried = None if memory.state is None else memory.state[:rows]
        level_tokens: list[Tensor] = []
        probs: list[Tensor] = []
        paths = torch.empty(rows, 1, 0, dtype=torch.int64, device=state.lengths.device)
        scratch = memory.place(state, self._scratch)
        for number, level in enumerate(self._levels):
            if number:
                if carried is not None:
                    width = carried.shape[-1]
                    carried = carried.view(rows, -1, width)[:, level.parent_rows].reshape(-1, width)
                inner_tokens = level_tokens[-1][:, level.tokens_at]
                paths = torch.cat([paths[:, level.parent_rows], inner_tokens[:, :, None]], dim=2)
                queries = len(level.nodes)
                output = memory.step(
                    state,
                    scratch,
                    level.first_slot,
                    inner_tokens,
                    carried,
                    tail_mask=level.mask.expand(rows, -1, -1),
                    tail_depths=self._scratch.depths[: level.first_slot + queries].expand(rows, -1),
                )
                hidden, carried = output.hidden, output.state
            else:
                queries = 1
            level_tokens.append(
                self._children(level, memory.draft.logits(hidden).view(rows, queries, -1), state, paths, probs)
            )
        return Proposal(
            tokens=torch.cat(level_tokens, dim=1),
            parents=self._parents[:rows],
            depths=self._depths[:rows],
            ancestors=self._ancestors[:rows],
            draft_lens=draft_lengths(state, self._shape, memory.max_pairs),
            shape=self._shape,
            distribution=DraftDistribution(torch.cat(probs, dim=1), warped=True) if probs else None,
        )

    def _children(
        self, level: _Level, logits_BWD: Tensor, state: DecodeState, paths_BWL: Tensor, probs: list[Tensor]
    ) -> Tensor:
        """Target ids ``[B, n]`` of the next level's nodes; what they were drawn from is added to ``probs``."""
        vocab = self._memory.spec.vocab
        scores = logits_BWD
        if state.sampling.features.active:
            scores = draft_scores(logits_BWD, state, level_paths(paths_BWL), vocab, self._mode)
        if self._mode is ProposalMode.SAMPLED:
            drawn = draw_children(scores, state, vocab, level=paths_BWL.shape[2], count=level.max_children)
            probs.append(drawn.probs[:, level.child_rows])
            return drawn.target_ids[:, level.child_rows, level.child_ranks]
        best = scores.topk(level.max_children, dim=-1).indices
        return vocab.to_target(best[:, level.child_rows, level.child_ranks])

    def move_row(self, source: int, destination: int) -> None:
        """Copy what is kept for a row."""
        self._memory.move_row(source, destination)


def _plan_levels(parents: Sequence[int], depths: Sequence[int], device: torch.device) -> tuple[_Level, ...]:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents, start=1):
        children.setdefault(parent, []).append(node)
    levels: list[_Level] = []
    slots: list[int] = []
    above: tuple[int, ...] = ()
    for depth in range(max(depths)):
        at_depth = [node for node in range(len(depths)) if depths[node] == depth]
        nodes = tuple(node for node in at_depth if node in children)
        first_slot = len(slots)
        if depth:
            slots += nodes
        paths = {node: _path(node, parents) for node in nodes}
        below = [node for node in range(len(depths)) if depths[node] == depth + 1]
        levels.append(
            _Level(
                nodes=nodes,
                tokens_at=torch.tensor([at_depth.index(node) for node in nodes], device=device),
                parent_rows=torch.tensor(
                    [above.index(parents[node - 1]) for node in nodes] if depth else [0], device=device
                ),
                first_slot=first_slot,
                mask=torch.tensor([[slot in paths[node] for slot in slots] for node in nodes], device=device),
                child_rows=torch.tensor([nodes.index(parents[node - 1]) for node in below], device=device),
                child_ranks=torch.tensor([children[parents[node - 1]].index(node) for node in below], device=device),
                max_children=max(len(children[node]) for node in nodes),
            )
        )
        above = nodes
    return tuple(levels)


def _path(node: int, parents: Sequence[int]) -> set[int]:
    path: set[int] = set()
    while node:
        path.add(node)
        node = parents[node - 1]
    return path
