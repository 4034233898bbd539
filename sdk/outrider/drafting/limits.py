"""How long a draft may be, row by row."""

from __future__ import annotations

from torch import Tensor

from outrider.types import TreeShape
from outrider.types.state import DecodeState

__all__ = ["draft_lengths"]


def draft_lengths(state: DecodeState, shape: TreeShape, max_pairs: int | None = None) -> Tensor:
    """``[B]`` int64 in 0..depth: the longest path each row may draft now; device only.

    Near the context limit of the target, or of the draft (``max_pairs``), the draft shrinks, to zero if need be: a
    drafted token at depth d stands at index length + d and must leave room for the bonus; the draft itself runs pair
    length + d - 2 to propose it.
    """
    room = state.context_length - 2
    if max_pairs is not None:
        room = min(room, max_pairs + 1)
    return (room - state.lengths).clamp_(0, shape.depth).minimum(state.draft_caps)
