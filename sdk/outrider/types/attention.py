"""A ragged batch as attention sees it, and what an attention backend can do."""

from __future__ import annotations

from enum import Enum

import torch
from attrs import frozen
from torch import Tensor

from outrider.types.counts import RequestCount, TokenCount

__all__ = ["AttnBatch", "AttnCapabilities", "AttnShape", "CaptureSupport"]


class CaptureSupport(Enum):
    """Which of a backend's plans can be refreshed and run inside a captured graph."""

    NONE = "none"
    UNIFORM_QUERIES = "uniform queries"
    ANY = "any"


@frozen
class AttnCapabilities:
    """What an attention backend can serve; everything else is refused at bind, with both sides named.

    ``page_sizes`` and ``head_dims`` are ``None`` where any will do. ``any_length``: a plan for a large ``max_length``
    serves short sequences at their own cost, so one capture does for all lengths.
    """

    name: str
    devices: frozenset[str]
    dtypes: frozenset[torch.dtype]
    page_sizes: frozenset[int] | None
    head_dims: frozenset[int] | None
    tree_masks: bool
    windows: bool
    soft_cap: bool
    sinks: bool
    capture: CaptureSupport
    any_length: bool = False


@frozen
class AttnShape:
    """What a captured plan is built for: all the host knows of a batch of equally many queries, the requests' number aside.

    ``queries`` per request, ``max_length`` of prefix + tail, ``pages`` of a page table's row, ``tail`` slots under a tail mask
    (``None``: causal order), and whether tree rows and tail slots come with ``depths``.
    """

    queries: int
    max_length: int
    pages: int
    tail: int | None = None
    depths: bool = False


@frozen(eq=False)
class AttnBatch:
    """B requests whose new tokens attend to their own cached prefix and to each other.

    Request b holds ``prefix_lens[b]`` cached positions; its new tokens follow. All tensors live on the model's
    device; a backend may read them again at every `AttnPlan.refresh`, so the loop changes them in place.

    - ``query_lens``: new tokens per request, known on the host; all equal in decode, verify and draft steps.
    - ``prefix_lens``: ``[B]`` int64.
    - ``page_table``: ``[B, P]`` int64 page ids; entries past a request's pages are 0, a page of zeros.
    - ``slots``: ``[T]`` int64, where each new k and v is written; padding rows name a slot that is never read.
    - ``max_length``: host upper bound of prefix + tail over the batch.
    - ``host_prefix_lens``: ``prefix_lens`` where the host knows them without asking the device (prefill).
    - ``tail_mask``: ``None`` for causal order. Else ``[B, Q, M]`` bool: query row q of request b sees the M slots
      that follow its prefix where true (ancestors and self in a tree). Needs uniform ``query_lens``.
    - ``query_depths`` / ``tail_depths``: ``[B, Q]`` and ``[B, M]`` int64, distance of a tree row and of a tail slot
      from the end of the prefix; sliding windows need them since slots of siblings are not positions.
    """

    query_lens: tuple[int, ...]
    prefix_lens: Tensor
    page_table: Tensor
    slots: Tensor
    max_length: int
    host_prefix_lens: tuple[int, ...] | None = None
    tail_mask: Tensor | None = None
    query_depths: Tensor | None = None
    tail_depths: Tensor | None = None

    @property
    def num_requests(self) -> RequestCount:
        """Number of requests B."""
        return RequestCount(len(self.query_lens))

    @property
    def num_tokens(self) -> TokenCount:
        """Number of new tokens T of all requests."""
        return TokenCount(sum(self.query_lens))

    @property
    def uniform_queries(self) -> int | None:
        """Queries per request where all requests have equally many, else ``None``."""
        first = self.query_lens[0] if self.query_lens else 0
        return first if all(n == first for n in self.query_lens) else None

    @property
    def shape(self) -> AttnShape | None:
        """What a captured plan is built for; ``None`` where queries differ or the host knows the prefixes (a prompt)."""
        queries = self.uniform_queries
        if queries is None or self.host_prefix_lens is not None:
            return None
        return AttnShape(
            queries=queries,
            max_length=self.max_length,
            pages=self.page_table.shape[1],
            tail=None if self.tail_mask is None else self.tail_mask.shape[2],
            depths=self.tail_depths is not None,
        )
