"""Builders of the drafters over one draft model, and of none."""

from __future__ import annotations

import torch
from attrs import frozen

from outrider.drafting.chain import ChainDrafter
from outrider.drafting.choosing import ProposalMode
from outrider.drafting.memory import DraftMemory
from outrider.drafting.none import NoDrafter
from outrider.drafting.static_tree import StaticTreeDrafter, check_parents
from outrider.drafting.tree import TreeDrafter, num_candidates
from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import BoundDraft, Drafter, DrafterParts
from outrider.types import AttentionSpec

__all__ = [
    "ChainBuilder",
    "ModelDraftBuilder",
    "NoDraftBuilder",
    "StaticTreeBuilder",
    "TreeBuilder",
]


@frozen(eq=False)
class NoDraftBuilder:
    """Plain decoding."""

    @property
    def slack(self) -> int:
        """Only the root."""
        return 1

    @property
    def needs_tree(self) -> bool:
        """Nothing is proposed."""
        return False

    @property
    def kv_layers(self) -> None:
        """No model."""

    def build(self, parts: DrafterParts) -> Drafter:
        """A drafter that proposes nothing."""
        return NoDrafter(parts.num_rows, parts.target.stack.spec.device)


@frozen(eq=False)
class ModelDraftBuilder:
    """What builders of drafters over one draft model share."""

    draft: BoundDraft

    @property
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype]:
        """Those of the draft."""
        return self.draft.spec.layers, self.draft.spec.dtype


@frozen(eq=False)
class ChainBuilder(ModelDraftBuilder):
    """Chains of ``length`` tokens from ``draft``."""

    length: int
    mode: ProposalMode = ProposalMode.COUPLED

    @property
    def slack(self) -> int:
        """Root and drafted tokens."""
        return self.length + 1

    @property
    def needs_tree(self) -> bool:
        """A chain is causal."""
        return False

    def build(self, parts: DrafterParts) -> Drafter:
        """A chain drafter."""
        with Problems("the chain cannot be drafted", ConfigurationError) as problems:
            if self.length < 1:
                problems.add(f"num_draft_tokens is {self.length}, at least 1 is needed")
            _check_depth(problems, self.draft, self.length)
        return ChainDrafter(DraftMemory.of(parts, self.draft, needs_tree=False), self.length, parts.num_rows, self.mode)


@frozen(eq=False)
class TreeBuilder(ModelDraftBuilder):
    """Dynamic EAGLE-2 trees: ``width`` nodes a level, ``depth`` levels, the best ``num_tokens`` candidates."""

    width: int
    depth: int
    num_tokens: int
    mode: ProposalMode = ProposalMode.COUPLED

    @property
    def slack(self) -> int:
        """Root and drafted tokens, or the scratch of the draft, whichever is more."""
        return max(self.num_tokens + 1, self.width * max(self.depth - 1, 0))

    @property
    def needs_tree(self) -> bool:
        """Siblings must not see each other."""
        return True

    def build(self, parts: DrafterParts) -> Drafter:
        """A tree drafter."""
        vocab = self.draft.spec.vocab.size
        with Problems("the tree cannot be drafted", ConfigurationError) as problems:
            if self.width < 1 or self.depth < 1 or self.num_tokens < 1:
                problems.add(
                    f"width {self.width}, depth {self.depth}, {self.num_tokens} drafted tokens: each must be 1 or more"
                )
            else:
                most = num_candidates(self.width, self.depth)
                if self.num_tokens > most:
                    problems.add(
                        f"{self.num_tokens} drafted tokens asked; width {self.width} and depth {self.depth} give at most "
                        f"k + k²(d - 1) = {most} candidates"
                    )
            if self.mode is ProposalMode.SAMPLED:
                problems.add(
                    "a dynamic tree keeps its best candidates, so they cannot be sampled without changing the output "
                    "distribution; draft greedily or coupled, or give a static tree"
                )
            if self.width > vocab:
                problems.add(f"width {self.width} is more than the {vocab} tokens of the draft's vocabulary")
            _check_depth(problems, self.draft, self.depth)
        memory = DraftMemory.of(parts, self.draft, needs_tree=True)
        return TreeDrafter(memory, self.width, self.depth, self.num_tokens, parts.num_rows, self.mode)


@frozen(eq=False)
class StaticTreeBuilder(ModelDraftBuilder):
    """A fixed tree: ``parents[i - 1]`` is the parent of node i, 0 the root; nodes level by level."""

    parents: tuple[int, ...]
    mode: ProposalMode = ProposalMode.COUPLED

    @property
    def slack(self) -> int:
        """Root and drafted tokens."""
        return len(self.parents) + 1

    @property
    def needs_tree(self) -> bool:
        """Siblings must not see each other."""
        return True

    def build(self, parts: DrafterParts) -> Drafter:
        """A drafter of this tree."""
        check_parents(self.parents)
        vocab = self.draft.spec.vocab.size
        most = max(self.parents.count(parent) for parent in set(self.parents))
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        with Problems("the tree cannot be drafted", ConfigurationError) as problems:
            if most > vocab:
                problems.add(f"a node has {most} children, more than the {vocab} tokens of the draft's vocabulary")
            _check_depth(problems, self.draft, max(depths))
        return StaticTreeDrafter(
            DraftMemory.of(parts, self.draft, needs_tree=True), self.parents, parts.num_rows, self.mode
        )


def _check_depth(problems: Problems, draft: BoundDraft, depth: int) -> None:
    limit = draft.spec.max_draft_tokens
    if limit is not None and depth > limit:
        problems.add(f"depth {depth} asked; draft '{draft.spec.name}' was made for at most {limit}")
