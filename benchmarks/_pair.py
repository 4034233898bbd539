"""The embedded pair, made ready without installed entry points: a target, its EAGLE-3 and its EAGLE-1 draft."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from outrider import ChainBuilder, SpeculativeModel, StaticTreeBuilder, TreeBuilder
from outrider.checkpoint import Checkpoint
from outrider.drafting.choosing import ProposalMode
from outrider.interfaces import BoundDraft, DrafterBuilder, GraphRunner, LoadOptions, Target
from outrider.loop.build import EngineOptions
from outrider_adapters.eagle import eagle3_loader, eagle_loader
from outrider_adapters.llama import loader
from outrider_adapters.pairs import tiny
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["STATIC_PARENTS", "Pair", "load_pair"]

STATIC_PARENTS = (0, 0, 0, 1, 1, 2, 4, 4, 7, 9)
"""Ten nodes in five levels: three after the root, and one long path below the likeliest of them."""


@frozen(eq=False)
class Pair:
    """The target with both drafts bound to it, on one device in one dtype."""

    target: Target
    eagle3: BoundDraft
    eagle1: BoundDraft

    def chain(self, length: int, mode: ProposalMode = ProposalMode.COUPLED) -> ChainBuilder:
        """Chains of the EAGLE-3 draft."""
        return ChainBuilder(self.eagle3, length, mode)

    def eagle1_chain(self, length: int, mode: ProposalMode = ProposalMode.COUPLED) -> ChainBuilder:
        """Chains of the EAGLE-1 draft."""
        return ChainBuilder(self.eagle1, length, mode)

    def tree(self, width: int, depth: int, num_tokens: int, mode: ProposalMode = ProposalMode.COUPLED) -> TreeBuilder:
        """Dynamic trees of the EAGLE-3 draft."""
        return TreeBuilder(self.eagle3, width, depth, num_tokens, mode)

    def static_tree(self, mode: ProposalMode = ProposalMode.COUPLED) -> StaticTreeBuilder:
        """Trees of the fixed shape `STATIC_PARENTS`, filled by the EAGLE-3 draft."""
        return StaticTreeBuilder(self.eagle3, STATIC_PARENTS, mode)

    def model(
        self,
        builder: DrafterBuilder | None,
        options: EngineOptions | None = None,
        runner: Callable[[], GraphRunner] = EagerRunner,
    ) -> SpeculativeModel:
        """What `outrider.load` would give, with PyTorch's own attention."""
        return SpeculativeModel(self.target, builder, attention=SdpaBackend(), runner=runner, options=options)


def load_pair(device: torch.device, dtype: torch.dtype = torch.float32) -> Pair:
    """The pair that comes with the package, on ``device`` as ``dtype``."""
    directories = tiny()
    options = LoadOptions(device, dtype)
    target = loader().load(Checkpoint(directories.target), options)
    eagle3_directory, eagle1_directory = directories.drafts
    return Pair(
        target,
        eagle3_loader().load(Checkpoint(eagle3_directory), options).bind(target),
        eagle_loader().load(Checkpoint(eagle1_directory), options).bind(target),
    )
