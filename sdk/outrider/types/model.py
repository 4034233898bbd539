"""What a model is, as data: attention per layer, rope, positions and sizes."""

from __future__ import annotations

from typing import Literal

import torch
from attrs import field, frozen
from torch import Tensor

__all__ = ["AttentionSpec", "LogitScaling", "ModelSpec", "PositionScheme", "RopeKind", "RopeSpec"]

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@frozen
class AttentionSpec:
    """What one layer's attention is; a backend declares which of these it can serve.

    ``scale`` multiplies q·k. ``window`` is the number of most recent positions a query sees, itself included
    (``None``: all). ``soft_cap`` c replaces scores s by c·tanh(s/c). ``sinks`` holds one extra logit per query
    head, ``[num_heads]`` float32, that takes part in the softmax and attends to nothing.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = field(default=None, eq=False, repr=False)


@frozen
class RopeSpec:
    """Rotary position embedding of one model, in the terms of Hugging Face's ``rope_parameters``."""

    kind: RopeKind
    theta: float
    rotary_dim: int
    """Leading dimensions of each head that are rotated (``head_dim × partial_rotary_factor``)."""
    factor: float = 1.0
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    sections: tuple[int, ...] | None = None
    """Multi-axis rope: how many of the ``rotary_dim / 2`` frequencies follow each position axis."""


@frozen
class PositionScheme:
    """How positions are given to a stack.

    ``axes`` 1 means ``[T]``, 3 means ``[3, T]`` (temporal, height, width). ``needs_lengths`` asks the loop for
    `StackInputs.lengths` as well (dynamic NTK rope, whose base depends on the length of the sequence).
    """

    axes: Literal[1, 3] = 1
    needs_lengths: bool = False


@frozen
class LogitScaling:
    """What becomes of a head's products x = h Wᵀ: logits s·x, or c·tanh(s·x / c) under a soft cap c."""

    scale: float = 1.0
    cap: float | None = None

    def apply(self, products: Tensor) -> Tensor:
        """Logits of ``products [R, V]``: of their dtype, and they themselves where there is nothing to do.

        Device only, safe in a capture; never changes ``products``.
        """
        scaled = products if self.scale == 1.0 else products * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap


@frozen
class ModelSpec:
    """A model as the loop sees it: sizes, per-layer attention, positions, dtype and device.

    ``embedding_scale`` and ``logit_scaling`` say what ``embed`` and ``logits`` make of the embedding and the head, so that a
    draft that shares those can do the same.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[AttentionSpec, ...]
    max_positions: int
    dtype: torch.dtype
    device: torch.device
    positions: PositionScheme = PositionScheme()
    rope: RopeSpec | None = None
    embedding_scale: float = 1.0
    logit_scaling: LogitScaling = LogitScaling()

    @property
    def num_layers(self) -> int:
        """Number of layers N; taps run from boundary 0 to boundary N."""
        return len(self.layers)
