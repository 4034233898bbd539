"""EAGLE-1, EAGLE-2 and HASS drafts: embedding and feature pass one linear layer, the output is the next feature."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import BoundDraft, Target, UnboundDraft
from outrider.types import DraftOutput, DraftSpec, StackInputs
from outrider_adapters.eagle.binding import JoinedWeights, bind_spec, join_weights
from outrider_adapters.eagle.ends import DraftEnds
from outrider_adapters.eagle.layer import DraftLayer
from outrider_adapters.nn import Projection, RmsNorm, Rope

__all__ = ["BoundEagle1", "Eagle1Draft", "Eagle1Weights"]


@frozen(eq=False)
class Eagle1Weights:
    """Everything of an EAGLE-1 draft but embedding and head: ``fc [H, 2H]``, its bias ``[H]``, the layers."""

    fc: Projection
    embed_norm: RmsNorm | None
    layers: tuple[DraftLayer, ...]
    rope: Rope


class Eagle1Draft(UnboundDraft):
    """A loaded EAGLE-1 draft that has not met its target."""

    def __init__(
        self,
        spec: DraftSpec,
        weights: Eagle1Weights,
        embedding: Tensor | None,
        head: Tensor | None,
        media_note: str | None = None,
    ) -> None:
        """``embedding [V, H]`` and ``head [V, H]`` are its own, ``None`` where the target supplies them.

        ``media_note``: what to say of `DraftSpec.media` beside a target with media.
        """
        self._spec, self._weights, self._media_note = spec, weights, media_note
        self._embedding, self._head = embedding, head

    @property
    def spec(self) -> DraftSpec:
        """What the checkpoint says and its tensors confirm."""
        return self._spec

    def bind(self, target: Target) -> BoundEagle1:
        """The draft with its final weights; see `UnboundDraft.bind`."""
        spec = bind_spec(self._spec, target, taps_by_depth=False, media_note=self._media_note)
        return BoundEagle1(spec, self._weights, join_weights(spec, target, self._embedding, self._head))


class BoundEagle1(DraftEnds, BoundDraft):
    """An EAGLE-1 draft with final weights.

    There is no final norm: `DraftOutput.hidden` and `DraftOutput.state` are the same tensor, the layer's output, which
    stands in for the target's feature in the next step.

    Source: EAGLE (Li et al. 2024), section 3.2.
    """

    def __init__(self, spec: DraftSpec, weights: Eagle1Weights, joined: JoinedWeights) -> None:
        super().__init__(spec, joined)
        self._weights = weights

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run verified rows on the target's ``features [T, H]``; see `BoundDraft.extend`."""
        fed = self._given(features, f"{self._spec.feature_width} target features")
        return self._run(embeds, fed, inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run drafted rows on the previous step's ``state``, in the place of a feature; see `BoundDraft.step`."""
        return self._run(embeds, self._given(state, "the state of the step before"), inputs)

    def _run(self, embeds: Tensor, feature: Tensor, inputs: StackInputs) -> DraftOutput:
        weights = self._weights
        cos, sin = weights.rope.rotation(inputs.positions, inputs.lengths)
        if weights.embed_norm is not None:
            embeds = weights.embed_norm(embeds)
        hidden = weights.fc(torch.cat((embeds, feature), dim=-1))
        for layer in weights.layers:
            hidden = layer.forward(embeds, hidden, cos, sin, inputs.attend)
        return DraftOutput(hidden, hidden)
