"""`DraftEnds`: embedding and head of a bound EAGLE draft, and what it must be fed."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor

from outrider.errors import ConformanceError
from outrider.interfaces import LayerStackProvider
from outrider.types import DraftSpec
from outrider_adapters.eagle.binding import JoinedWeights
from outrider_adapters.nn import head_logits

__all__ = ["DraftEnds"]


class DraftEnds:
    """What EAGLE drafts of every kind share; the layers between are a kind's own."""

    def __init__(self, spec: DraftSpec, joined: JoinedWeights) -> None:
        self._spec = spec
        self._joined = joined
        self._embedding, self._head = joined.embedding, joined.head

    @property
    def spec(self) -> DraftSpec:
        """The one source of widths, taps, vocabulary, state and limits."""
        return self._spec

    @property
    def bound_to(self) -> LayerStackProvider:
        """The stack of the target it was bound to."""
        return self._joined.bound_to

    @property
    def embedding(self) -> Tensor:
        """``[V, H]``; the target's own storage where `DraftSpec.embedding` says so."""
        return self._embedding

    @property
    def head(self) -> Tensor:
        """``[Dv, H]``; the target's own storage where `DraftSpec.head` is the whole of it."""
        return self._head

    def embed(self, token_ids: Tensor) -> Tensor:
        """Fresh ``[T, H]`` for target ids ``[T]`` int64. Device only, safe in a capture."""
        rows, scale = functional.embedding(token_ids, self._embedding), self._joined.embedding_scale
        return rows if scale == 1.0 else rows * scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Fresh ``[R, Dv]`` of `DraftOutput.hidden` rows ``[R, H]``. Device only, safe in a capture."""
        return self._joined.logit_scaling.apply(head_logits(hidden, self._head))

    def _given(self, fed: Tensor | None, what: str) -> Tensor:
        """``fed``, which a draft of this kind cannot do without."""
        if fed is None:
            raise ConformanceError(f"draft '{self._spec.name}' is fed {what}, got none")
        return fed
