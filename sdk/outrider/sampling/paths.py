"""`NodePaths`: the nodes of a tree at which a next token is chosen, each with the way that leads to it."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider.types import Proposal
from outrider.types.state import DecodeState

__all__ = ["NodePaths"]


@frozen(eq=False)
class NodePaths:
    """M nodes for each of B rows. The token chosen after a node of depth d has absolute index ``lengths + d + 1``.

    - ``depths``: ``[B, M]`` int64 below the root; below ``num_levels``, which the host knows.
    - ``tokens``: ``[B, N]`` int64 target ids drafted below the root (N may be 0).
    - ``on_path``: ``[B, M, N]`` bool, which of them stand on the path from the root (excluded) to the node (included).
    """

    depths: Tensor
    tokens: Tensor
    on_path: Tensor
    num_levels: int

    @classmethod
    def root(cls, state: DecodeState) -> NodePaths:
        """The root alone (M = 1, N = 0): plain decoding, and the first token after a prompt."""
        rows = state.num_rows
        return cls(
            depths=torch.zeros_like(state.lengths)[:, None],
            tokens=state.roots.new_empty(rows, 0),
            on_path=torch.empty(rows, 1, 0, dtype=torch.bool, device=state.lengths.device),
            num_levels=1,
        )

    @classmethod
    def of(cls, proposal: Proposal) -> NodePaths:
        """The root and every drafted node (M = N + 1), as views of the proposal's storage."""
        return cls(
            depths=proposal.depths,
            tokens=proposal.tokens,
            on_path=proposal.ancestors[:, :, 1:],
            num_levels=proposal.shape.depth + 1,
        )

    @property
    def num_nodes(self) -> int:
        """Nodes per row M."""
        return self.depths.shape[1]

    def indices(self, state: DecodeState) -> Tensor:
        """Absolute index ``[B, M]`` int64 of the token that is chosen after each node."""
        return state.lengths[:, None] + self.depths + 1
