"""Hidden-state taps: which of the target's residual streams a draft is fed."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

__all__ = ["HiddenTap", "TapConvention"]


class TapConvention(Enum):
    """What the layer ids in a checkpoint's config count."""

    BOUNDARY = "boundary"
    """Id ``i`` is the residual stream before layer ``i`` (Hugging Face ``hidden_states[i]``)."""
    LAYER_OUTPUT = "layer_output"
    """Id ``i`` is the output of layer ``i``, which is boundary ``i + 1``."""


@frozen(order=False)
class HiddenTap:
    """One point of the target's residual stream; never a bare int.

    ``boundary`` ``i`` (0 ≤ i ≤ N) is the stream before layer ``i``; boundary N is after the last layer and
    *before* the final norm. ``None`` stands for boundary N *after* the final norm (`FINAL_NORM`).
    """

    boundary: int | None

    @classmethod
    def at(cls, index: int, convention: TapConvention = TapConvention.BOUNDARY) -> HiddenTap:
        """The tap that an id of a checkpoint's config means under ``convention``."""
        return cls(index + 1 if convention is TapConvention.LAYER_OUTPUT else index)

    @classmethod
    def final_norm(cls) -> HiddenTap:
        """The stream after the last layer and the final norm."""
        return cls(None)

    def exists_in(self, num_layers: int) -> bool:
        """Whether a stack of ``num_layers`` layers has this tap."""
        return self.boundary is None or 0 <= self.boundary <= num_layers

    def __str__(self) -> str:
        return "final_norm" if self.boundary is None else f"boundary {self.boundary}"
