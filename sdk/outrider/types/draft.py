"""Everything the loop must know about a draft before it runs it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import torch
from attrs import frozen

from outrider.types.model import AttentionSpec, RopeSpec
from outrider.types.taps import HiddenTap
from outrider.types.vocab import DraftVocab

__all__ = ["DraftSpec", "MediaView", "PositionView", "RecurrentState", "RowAlignment", "WeightSource"]


class WeightSource(Enum):
    """Where a draft's embedding or head comes from.

    One of the target's is used as the target uses it: times `ModelSpec.embedding_scale`, under `ModelSpec.logit_scaling`.
    """

    OWN = "own"
    TARGET = "target"
    TARGET_SLICED = "target, sliced to the draft vocabulary"


class MediaView(Enum):
    """What a draft sees at the positions of images, video or audio."""

    TARGET_EMBEDDING = "the target's merged embedding"
    """The very rows the target's layers read; needs embeddings as wide as the target's, and `RowAlignment.SHIFTED`."""
    PLACEHOLDER = "the embedding of the placeholder token"
    """The draft's own row of that id; zeros where the id lies outside the vocabulary."""


class PositionView(Enum):
    """Where the rope positions of a draft's rows come from."""

    TARGET = "the target's positions"
    """A draft of one axis takes the first (time) of a target's three; one of three axes takes a target's one on each."""
    INDEX = "sequence indices"
    """Counted by tokens, whatever axes and offsets the target's positions have."""


class RowAlignment(Enum):
    """What one row of a draft's verified sequence is, and where it stands."""

    SHIFTED = "the target's feature at i beside token i + 1, at i"
    """A draft on the target's features: its sequence is one shorter than the target's."""
    SAME = "token i alone, at i"
    """A standalone draft: it reads the very sequence that the target reads, first token and root included."""


@frozen
class RecurrentState:
    """What a draft step hands to the next one: ``[T, width]`` of ``dtype``."""

    width: int
    dtype: torch.dtype


@frozen
class DraftSpec:
    """The one source of a draft's widths, vocabulary, taps, state and limits.

    Built from the checkpoint's config *and* checked against its tensors; a conflict is an error that names both.
    ``state`` is ``None`` for a draft that carries nothing between steps but its KV (a standalone model).
    ``taps`` is empty for a draft that is fed no feature of the target; otherwise `feature_width` columns, the taps
    in order, are fed with every verified row. ``max_positions`` is the draft's own context limit. ``alignment`` SAME
    goes without taps, and its rope positions are sequence indices, whatever ``positions`` says. ``position_axes`` 3 asks
    for positions ``[3, T]``.
    """

    name: str
    kind: str
    hidden_size: int
    layers: tuple[AttentionSpec, ...]
    taps: tuple[HiddenTap, ...]
    target_hidden_size: int | None
    state: RecurrentState | None
    vocab: DraftVocab
    embedding: WeightSource
    head: WeightSource
    max_positions: int
    dtype: torch.dtype
    device: torch.device
    rope: RopeSpec | None = None
    max_draft_tokens: int | None = None
    media: MediaView = MediaView.PLACEHOLDER
    position_axes: Literal[1, 3] = 1
    positions: PositionView = PositionView.TARGET
    alignment: RowAlignment = RowAlignment.SHIFTED
    needs_lengths: bool = False
    """Whether its rope needs `StackInputs.lengths` (dynamic NTK)."""
    notes: tuple[str, ...] = ()
    """Choices the loader made where the checkpoint is silent, each with its reason."""

    @property
    def embed_width(self) -> int:
        """Columns of the embeddings it takes: the target's where it shares the target's embedding."""
        shared = self.embedding is WeightSource.TARGET and self.target_hidden_size is not None
        return self.target_hidden_size or self.hidden_size if shared else self.hidden_size

    @property
    def feature_width(self) -> int:
        """Columns of target features fed with every verified row: number of taps × the target's hidden size."""
        return len(self.taps) * (self.target_hidden_size or 0)
