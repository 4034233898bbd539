"""Constant index tensors that plans share."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

__all__ = ["GridCache", "KeyGrid"]


@frozen(eq=False)
class KeyGrid:
    """For key positions 0..S-1, each ``[S]`` int64: ``positions``, and their ``pages`` and ``offsets`` in pages."""

    positions: Tensor
    pages: Tensor
    offsets: Tensor


class GridCache:
    """Grids by page size and device. A grid is a slice of the longest one built so far, and is never written."""

    def __init__(self) -> None:
        self._longest: dict[tuple[int, torch.device], KeyGrid] = {}

    def get(self, length: int, page_size: int, device: torch.device) -> KeyGrid:
        """The grid of ``length`` positions; allocates when it is longer than any before."""
        grid = self._longest.get((page_size, device))
        if grid is None or grid.positions.shape[0] < length:
            positions = torch.arange(max(1024, 1 << (length - 1).bit_length()), device=device)
            pages = positions.div(page_size, rounding_mode="floor")
            grid = KeyGrid(positions=positions, pages=pages, offsets=positions.remainder(page_size))
            self._longest[page_size, device] = grid
        return KeyGrid(grid.positions[:length], grid.pages[:length], grid.offsets[:length])
