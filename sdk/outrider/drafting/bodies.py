"""The two functions of a bound draft that runners execute or capture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import BoundDraft
from outrider.types import Axis, BodyCalls, BufferSlot, DraftOutput, DraftSpec, StackInputs

__all__ = ["DraftExtendBody", "DraftStepBody"]


def _row_slots(spec: DraftSpec) -> tuple[BufferSlot, ...]:
    axes = () if spec.position_axes == 1 else (spec.position_axes,)
    slots = [
        BufferSlot("embeds", Axis.TOKENS, (spec.embed_width,), spec.dtype),
        BufferSlot("positions", Axis.TOKENS, (), torch.int64, leading=axes),
    ]
    if spec.needs_lengths:
        slots.append(BufferSlot("lengths", Axis.TOKENS, (), torch.int64, padding=1))
    return tuple(slots)


def _output_slots(spec: DraftSpec) -> tuple[BufferSlot, ...]:
    slots = [BufferSlot("hidden", Axis.TOKENS, (spec.hidden_size,), spec.dtype)]
    if spec.state is not None:
        slots.append(BufferSlot("state", Axis.TOKENS, (spec.state.width,), spec.state.dtype))
    return tuple(slots)


def _named(output: DraftOutput) -> dict[str, Tensor]:
    if output.state is None:
        return {"hidden": output.hidden}
    return {"hidden": output.hidden, "state": output.state}


@frozen(eq=False)
class DraftExtendBody:
    """Runs verified rows: embeddings of tokens i + 1 with the target's features at i."""

    draft: BoundDraft

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        """``embeds``, ``positions`` and, by `DraftSpec`, ``features`` and ``lengths``."""
        spec = self.draft.spec
        if not spec.taps:
            return _row_slots(spec)
        return (*_row_slots(spec), BufferSlot("features", Axis.TOKENS, (spec.feature_width,), spec.dtype))

    @property
    def outputs(self) -> tuple[BufferSlot, ...]:
        """``hidden`` and, by `DraftSpec`, ``state``."""
        return _output_slots(self.draft.spec)

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        """One pass of the draft over verified rows."""
        inputs = StackInputs(buffers["positions"], calls.attend, lengths=buffers.get("lengths"), outside=calls.outside)
        return _named(self.draft.extend(buffers["embeds"], buffers.get("features"), inputs))


@frozen(eq=False)
class DraftStepBody:
    """Runs drafted rows: embeddings of drafted tokens with the state of the step before."""

    draft: BoundDraft

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        """``embeds``, ``positions`` and, by `DraftSpec`, ``state`` and ``lengths``."""
        spec = self.draft.spec
        if spec.state is None:
            return _row_slots(spec)
        return (*_row_slots(spec), BufferSlot("state", Axis.TOKENS, (spec.state.width,), spec.state.dtype))

    @property
    def outputs(self) -> tuple[BufferSlot, ...]:
        """``hidden`` and, by `DraftSpec`, ``state``."""
        return _output_slots(self.draft.spec)

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        """One pass of the draft over its own rows."""
        inputs = StackInputs(buffers["positions"], calls.attend, lengths=buffers.get("lengths"), outside=calls.outside)
        return _named(self.draft.step(buffers["embeds"], buffers.get("state"), inputs))
