"""The vocabulary a draft proposes from, and its map to the target's."""

from __future__ import annotations

from attrs import field, frozen
from torch import Tensor

__all__ = ["DraftVocab"]


@frozen
class DraftVocab:
    """A draft vocabulary of ``size`` ids over a target vocabulary of ``target_size``.

    ``target_ids`` is ``None`` for a full vocabulary (draft id = target id), else ``[size]`` int64 on the draft's
    device with the *absolute* target id of each draft id, without repeats.
    """

    size: int
    target_size: int
    target_ids: Tensor | None = field(default=None, eq=False, repr=False)

    @property
    def is_full(self) -> bool:
        """Whether draft ids are target ids."""
        return self.target_ids is None

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids: any shape, int64; device only, safe in a capture."""
        return draft_ids if self.target_ids is None else self.target_ids.take(draft_ids)

    def scatter(self, values: Tensor, fill: float) -> Tensor:
        """Spread ``[..., size]`` over ``[..., target_size]``; ids outside the draft's vocabulary hold ``fill``.

        For probabilities ``fill`` is 0, for log-probabilities -inf. A full vocabulary returns ``values`` itself.
        """
        if self.target_ids is None:
            return values
        spread = values.new_full((*values.shape[:-1], self.target_size), fill)
        return spread.index_copy_(-1, self.target_ids, values)
