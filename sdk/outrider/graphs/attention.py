"""`StaticAttention`: an `AttnBatch` whose tensors stay where they are, filled anew for every call."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.errors import GraphError
from outrider.graphs.buffers import BufferSet
from outrider.interfaces import NULL_PAGE, TRASH_PAGE
from outrider.types import AttnBatch, Axis, BufferSlot, PhaseShape
from outrider.types.counts import counted

__all__ = ["StaticAttention"]


class StaticAttention:
    """What a captured plan reads: build `AttnPlanner.static_plan` over `batch`, then `fill` before every replay.

    Padding requests have an empty prefix on the null page and write to the trash page, so they change nothing that is
    read; their rows see only zeros and stay finite.
    """

    def __init__(self, capacity: PhaseShape, page_size: int, device: torch.device) -> None:
        """Allocate for calls of up to ``capacity`` requests, each as `PhaseShape.attention` says.

        Raises:
            GraphError: ``capacity`` has no uniform attention.
        """
        shape = capacity.attention
        if shape is None:
            raise GraphError(
                f"{capacity} cannot be captured with their attention; give equally many queries per request"
            )
        queries, tail = shape.queries, shape.tail
        requests, tokens = Axis.REQUESTS, Axis.TOKENS
        slots = [
            BufferSlot("prefix_lens", requests, (), torch.int64),
            BufferSlot("page_table", requests, (shape.pages,), torch.int64, padding=NULL_PAGE),
            BufferSlot("slots", tokens, (), torch.int64, padding=TRASH_PAGE * page_size),
        ]
        if tail is not None:
            slots.append(BufferSlot("tail_mask", requests, (queries, tail), torch.bool, padding=True))
        if tail is not None and shape.depths:
            slots.append(BufferSlot("query_depths", requests, (queries,), torch.int64))
            slots.append(BufferSlot("tail_depths", requests, (tail,), torch.int64))
        self._buffers = BufferSet(slots, capacity, device)
        own = self._buffers.tensors
        self.batch: AttnBatch = AttnBatch(
            query_lens=(queries,) * capacity.requests,
            prefix_lens=own["prefix_lens"],
            page_table=own["page_table"],
            slots=own["slots"],
            max_length=shape.max_length,
            tail_mask=own.get("tail_mask"),
            query_depths=own.get("query_depths"),
            tail_depths=own.get("tail_depths"),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of `batch` by their names there."""
        return dict(self._buffers.tensors)

    def fill(self, batch: AttnBatch) -> None:
        """Copy ``batch`` into `batch`, padding requests after it. Device only; tensors of ``batch`` are only read.

        Raises:
            GraphError: its sizes are not those this was built for.
        """
        given = {
            "prefix_lens": batch.prefix_lens,
            "page_table": batch.page_table,
            "slots": batch.slots,
            "tail_mask": batch.tail_mask,
            "query_depths": batch.query_depths,
            "tail_depths": batch.tail_depths,
        }
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        if batch.max_length > self.batch.max_length:
            raise GraphError(
                f"sequences of up to {counted(batch.max_length, 'position')}, the captured attention serves "
                f"{self.batch.max_length}; take a larger bucket"
            )
        self._buffers.fill(inputs, PhaseShape(batch.num_tokens, batch.num_requests))

    def vary(self) -> None:
        """Padding still, but one key long: what a capture does must not depend on it."""
        self._buffers.pad()
        self._buffers.tensors["prefix_lens"].fill_(1)
