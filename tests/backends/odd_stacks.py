"""Toy stacks that ask more of a runner than most: pieces outside of graphs, lengths, three axes of positions."""

from __future__ import annotations

import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import Target
from outrider.types import HiddenTap, ModelSpec, PositionScheme, RowAlignment, StackInputs, StackOutput
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToyStack, rms_norm

__all__ = ["AxesStack", "LengthsStack", "OutsideStack", "featured", "standalone"]


class OutsideStack(ToyStack):
    """In each layer runs two things outside of any graph, whose results are alive at once: neither could be captured."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed, null_first=True)
        self.rows: list[int] = []
        """How many rows each piece was given."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        streams = [hidden]
        for index, layer in enumerate(self.layers):
            first = inputs.outside(self._positive, streams[-1])
            second = inputs.outside(self._halved, streams[-1])
            streams.append(layer.forward(first + second, index, inputs.positions, inputs.attend))
        final = inputs.outside(self._halved, rms_norm(streams[-1]))
        return StackOutput(
            final, tuple(final if tap.boundary is None else streams[tap.boundary] for tap in inputs.taps)
        )

    def _positive(self, x: Tensor) -> Tensor:
        self.rows.append(x.shape[0])
        out = torch.zeros_like(x)
        places = (x > 0).nonzero(as_tuple=True)  # as many as there are
        out[places] = x[places]
        return out

    def _halved(self, x: Tensor) -> Tensor:
        self.rows.append(x.shape[0])
        return x * float(torch.tensor(0.5).item())


class LengthsStack(ToyStack):
    """Every row depends on the length that its token was encoded with."""

    @property
    def spec(self) -> ModelSpec:
        return evolve(super().spec, positions=PositionScheme(needs_lengths=True))

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        assert inputs.lengths is not None
        return super().run_layers(hidden * (1 + inputs.lengths[:, None].to(hidden.dtype).log()), inputs)


class AxesStack(ToyStack):
    """Positions of three axes, all of which count."""

    @property
    def spec(self) -> ModelSpec:
        return evolve(super().spec, positions=PositionScheme(axes=3))

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        first, second, third = inputs.positions
        own = evolve(inputs, positions=first * 2 + second - third * 2)
        return super().run_layers(hidden, own)


def standalone(stack: ToyStack) -> tuple[Target, SelfDraft]:
    """``stack`` as a target, and as a draft of its own that reads the same tokens."""
    target = Target(stack, stack.weights)
    draft = SelfDraft(target, stack, alignment=RowAlignment.SAME)
    draft._spec = evolve(draft.spec, needs_lengths=stack.spec.positions.needs_lengths)  # pyright: ignore[reportPrivateUsage] - a toy
    return target, draft


def featured(stack: ToyStack) -> tuple[Target, ToyDraft]:
    """``stack`` as a target, and a draft of fewer tokens that is fed two of its taps and hands a state on."""
    target = Target(stack, stack.weights)
    taps = (HiddenTap.at(1), HiddenTap.final_norm())
    return target, ToyDraft(target, taps=taps, recurrent=True, ids=(1, 4, 7, 40, 3))
