"""Proposals that are chains: the constant tensors of their shape, made once."""

from __future__ import annotations

import torch
from attrs import evolve
from torch import Tensor

from outrider.types import Proposal, TreeShape
from outrider.types.proposal import DraftDistribution

__all__ = ["ChainLayout"]


class ChainLayout:
    """Parents, depths and ancestors of a chain of ``length`` tokens for up to ``num_rows`` requests.

    The tensors it hands out are views that expand one row; nobody may write to them.
    """

    def __init__(self, length: int, num_rows: int, device: torch.device, scratch_slots: int | None = None) -> None:
        """``scratch_slots`` ``None``: those of a draft model, as `TreeShape.chain` has them."""
        nodes = torch.arange(length + 1, device=device)
        shape = TreeShape.chain(length)
        self.shape: TreeShape = shape if scratch_slots is None else evolve(shape, scratch_slots=scratch_slots)
        self._parents = nodes[:-1].expand(num_rows, -1)
        self._depths = nodes.expand(num_rows, -1)
        self._ancestors = (nodes[None, :] <= nodes[:, None]).expand(num_rows, -1, -1)

    def proposal(self, tokens: Tensor, draft_lens: Tensor, distribution: DraftDistribution | None = None) -> Proposal:
        """The chain ``tokens [B, N]`` of which row b may use the first ``draft_lens[b]``."""
        rows = tokens.shape[0]
        return Proposal(
            tokens=tokens,
            parents=self._parents[:rows],
            depths=self._depths[:rows],
            ancestors=self._ancestors[:rows],
            draft_lens=draft_lens,
            shape=self.shape,
            distribution=distribution,
        )
