"""`AttnBackend`, `AttnPlan` and `AttnPlanner`: attention over a paged cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.interfaces.kv import KVCache
from outrider.types import AttentionSpec, AttnBatch, AttnCapabilities

__all__ = ["AttnBackend", "AttnPlan", "AttnPlanner"]


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


class AttnPlanner(Protocol):
    """Plans of one model over its own KV memory: what a runner needs to attend, whichever way it runs a body."""

    @property
    @abstractmethod
    def capabilities(self) -> AttnCapabilities:
        """Those of the backend."""
        ...

    @property
    @abstractmethod
    def page_size(self) -> int:
        """Slots per page of the KV memory."""
        ...

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the KV memory lives, and with it every tensor of a batch."""
        ...

    @abstractmethod
    def plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan for ``batch``, refreshed; valid until the next call with a batch of the same sizes. Not for a capture.

        For as long as the caller holds it, `captured_plan` finds it.
        """
        ...

    @abstractmethod
    def captured_plan(self, batch: AttnBatch) -> AttnPlan:
        """What `plan` gives, inside a capture that will read and write the plan's buffers for as long as its graph lives.

        The caller holds the plan for as long.

        Raises:
            CaptureError: `plan` was not called for a batch of these sizes before the capture, or what it gave was let go.
        """
        ...

    @abstractmethod
    def static_plan(self, batch: AttnBatch) -> AttnPlan:
        """A plan that is the caller's alone and reads the very tensors of ``batch``, for a capture.

        The caller changes these tensors in place and has `AttnPlan.refresh` follow, inside the graph. May synchronise.
        """
        ...
