"""`DecodeCore`: the parts a round is made of, wired once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from outrider.drafting.none import NoDrafter
from outrider.interfaces import Drafter, GraphRunner, KVCache, Target, Verifier
from outrider.planning import PlanCache
from outrider.types import (
    AttnBatch,
    Axis,
    BodyCalls,
    BufferSlot,
    HiddenTap,
    ModelSpec,
    Phase,
    StackInputs,
)

__all__ = ["DecodeCore", "TargetBody", "TargetPass"]


@frozen(eq=False)
class TargetBody:
    """The target's layers as a function of named buffers: what runners execute or capture.

    Reads ``hidden [T, H]``, ``positions`` and, by `PositionScheme`, ``lengths``; returns ``hidden [T, H]`` after the final
    norm and, where taps are asked, ``features [T, taps · H]`` in the order asked.
    """

    target: Target
    taps: tuple[HiddenTap, ...]

    @property
    def inputs(self) -> tuple[BufferSlot, ...]:
        """Static input buffers."""
        spec = self.target.stack.spec
        axes = () if spec.positions.axes == 1 else (spec.positions.axes,)
        slots = [
            BufferSlot("hidden", Axis.TOKENS, (spec.hidden_size,), spec.dtype),
            BufferSlot("positions", Axis.TOKENS, (), torch.int64, leading=axes),
        ]
        if spec.positions.needs_lengths:
            slots.append(BufferSlot("lengths", Axis.TOKENS, (), torch.int64, padding=1))
        return tuple(slots)

    @property
    def outputs(self) -> tuple[BufferSlot, ...]:
        """Static output buffers."""
        spec = self.target.stack.spec
        hidden = BufferSlot("hidden", Axis.TOKENS, (spec.hidden_size,), spec.dtype)
        if not self.taps:
            return (hidden,)
        width = len(self.taps) * spec.hidden_size
        return (hidden, BufferSlot("features", Axis.TOKENS, (width,), spec.dtype))

    def __call__(self, buffers: Mapping[str, Tensor], calls: BodyCalls) -> dict[str, Tensor]:
        """One pass of the target's layers."""
        inputs = StackInputs(buffers["positions"], calls.attend, self.taps, buffers.get("lengths"), calls.outside)
        output = self.target.stack.run_layers(buffers["hidden"], inputs)
        if not self.taps:
            return {"hidden": output.hidden}
        features = output.taps[0] if len(output.taps) == 1 else torch.cat(output.taps, dim=-1)
        return {"hidden": output.hidden, "features": features}


@frozen(eq=False)
class TargetPass:
    """Outcome of one target pass: ``hidden [T, H]`` after the final norm, ``features [T, taps · H]`` or ``None``."""

    hidden: Tensor
    features: Tensor | None


@frozen(eq=False)
class DecodeCore:
    """Target, drafter, verifier and the backends under them: everything a prefill or a round needs but the state.

    ``drafts``: whether the drafter ever proposes anything, and so wants to see verified rows. ``spare_row``: the row, past
    those of requests, where what the drafter keeps of a prompt that is half run stands while rounds are run. ``nothing``:
    proposes nothing, for the first token after a prompt.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    plans: PlanCache
    runner: GraphRunner
    kv: KVCache
    body: TargetBody
    drafts: bool
    spare_row: int
    nothing: NoDrafter

    @property
    def spec(self) -> ModelSpec:
        """The target's spec."""
        return self.target.stack.spec

    def run_target(
        self, phase: Phase, hidden: Tensor, positions: Tensor, lengths: Tensor, batch: AttnBatch
    ) -> TargetPass:
        """One pass of the target over ``hidden [T, H]`` at rope ``positions``; ``lengths`` as in `StackInputs`."""
        inputs = {"hidden": hidden, "positions": positions}
        if self.spec.positions.needs_lengths:
            inputs["lengths"] = lengths
        out = self.runner.run(phase, self.body, inputs, batch, self.plans)
        return TargetPass(out["hidden"], out.get("features"))

    def rope_positions(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Rope positions ``[T]`` or ``[3, T]`` of text tokens at sequence ``indices`` (``offsets`` alike).

        Rows past the context are padding; their positions are kept in range.
        """
        return self.on_axes((indices + offsets).clamp_(max=self.spec.max_positions - 1).reshape(-1))

    def on_axes(self, positions: Tensor) -> Tensor:
        """Rope ``positions [T]`` of text tokens on the target's axes, ``[T]`` itself or ``[3, T]``."""
        return positions if self.spec.positions.axes == 1 else positions.expand(3, -1)
