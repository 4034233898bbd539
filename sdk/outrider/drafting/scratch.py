"""The slots that drafting itself writes past the verified rows, and where the rows in them stand.

Shape suffixes: B requests, S scratch slots of a proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

__all__ = ["PlacedScratch", "ScratchLayout"]


@frozen(eq=False)
class ScratchLayout:
    """The S scratch slots of every proposal of a drafter, in the order in which its steps write them; both ``[S]`` int64.

    ``order``: 0 to S - 1. ``depths``: how many pairs after the newest verified one the row in each slot stands; the very
    tensor ``order`` where each stands one further, as in a chain.
    """

    order: Tensor
    depths: Tensor

    @classmethod
    def chain(cls, count: int, device: torch.device) -> ScratchLayout:
        """``count`` rows, each after the one before."""
        order = torch.arange(count, device=device)
        return cls(order, order)

    @classmethod
    def tree(cls, depths: Sequence[int], device: torch.device) -> ScratchLayout:
        """Rows that stand at ``depths``, level by level."""
        return cls(torch.arange(len(depths), device=device), torch.tensor(depths, dtype=torch.int64, device=device))


@frozen(eq=False)
class PlacedScratch:
    """A `ScratchLayout` behind the verified rows of B requests: what draft steps need of it, computed once a proposal.

    All int64. ``verified``: ``[B]``, rows whose keys the draft holds. The others are ``[S, B]``, so that the rows of a
    chain's step lie side by side: ``places`` in the sequence, ``slots`` in the cache, ``positions`` as the draft counts
    them, and ``lengths`` as in `StackInputs`, ``None`` where the draft needs none.
    """

    verified: Tensor
    places: Tensor
    slots: Tensor
    positions: Tensor
    lengths: Tensor | None
