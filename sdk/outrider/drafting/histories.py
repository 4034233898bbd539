"""The sequences of the running requests as Python has them, for drafters that run on the host."""

from __future__ import annotations

import torch

from outrider._torch import int_rows
from outrider.types import DecodeState

__all__ = ["histories"]


def histories(state: DecodeState) -> list[list[int]]:
    """The token ids of each row, from its prompt to its root. Waits for the device, once; not for use in a graph."""
    columns = state.tokens[:, : state.max_length]
    rows = int_rows(torch.cat([state.lengths[:, None], columns], dim=1))
    return [row[1 : row[0] + 2] for row in rows]
