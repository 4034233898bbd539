"""Whether two devices are one."""

from __future__ import annotations

import torch

__all__ = ["same_device"]


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether tensors on both meet: "cuda" without an index is the current card, so only two named cards can differ."""
    index, other_index = _index(one), _index(other)
    return one.type == other.type and (index is None or other_index is None or index == other_index)


def _index(device: torch.device) -> int | None:
    # torch annotates the index as an int, though it may be None.
    _, _, index = str(device).partition(":")
    return int(index) if index else None
