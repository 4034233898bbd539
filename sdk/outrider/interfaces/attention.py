"""`AttnBackend` and `AttnPlan`: attention over a paged cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from outrider.interfaces.kv import KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities

__all__ = ["AttnBackend", "AttnPlan"]


class AttnPlan(Protocol):
    """One batch prepared for attention; serves every layer of one pass."""

    @abstractmethod
    def refresh(self) -> None:
        """Recompute what depends on the tensors of the `AttnBatch` (lengths, pages, masks) from their present values.

        Device only, no synchronisation, safe inside a capture where `AttnCapabilities.capture` says so.
        """
        ...

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v to the cache, then attend: an `outrider.types.Attend`."""
        ...


class AttnBackend(Protocol):
    """Attention over a paged KV cache: ragged prefill, decode, and verification with an ancestor mask."""

    @property
    @abstractmethod
    def capabilities(self) -> AttnCapabilities:
        """What the backend serves; whatever else is asked is refused at bind."""
        ...

    @abstractmethod
    def plan(self, batch: AttnBatch, layers: Sequence[AttentionSpec], kv: KVCache) -> AttnPlan:
        """A plan for ``batch``, already refreshed. May synchronise; not for use inside a capture."""
        ...
