"""Ancestor masks of draft trees."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ancestors_of"]


def ancestors_of(parents: Tensor, depth: int) -> Tensor:
    """``[B, N + 1, N + 1]`` bool: row i marks the nodes on the path root..i, itself included.

    ``parents [B, N]`` int64 node ids (0 = root) of nodes 1..N; no path is longer than ``depth``. Device only, static
    shapes, capture-safe.
    """
    rows, drafted = parents.shape
    nodes = torch.arange(drafted + 1, device=parents.device).expand(rows, -1)
    parent_of = torch.cat([torch.zeros_like(nodes[:, :1]), parents], dim=1)
    path = [nodes]
    for _ in range(depth):
        path.append(parent_of.gather(1, path[-1]))
    marked = torch.zeros(rows, drafted + 1, drafted + 1, dtype=torch.bool, device=parents.device)
    return marked.scatter_(2, torch.stack(path, dim=2), True)
