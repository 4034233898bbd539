"""A draft that says what it sees of media and positions, and keeps what it was given."""

from __future__ import annotations

from typing import Literal

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.interfaces import BoundDraft, LayerStackProvider
from outrider.types import DraftOutput, DraftSpec, MediaView, PositionView, StackInputs

__all__ = ["Given", "ViewedDraft"]


@frozen(eq=False)
class Given:
    """One pass: ``embeds [T, E]`` and ``positions [T]`` or ``[3, T]``."""

    embeds: Tensor
    positions: Tensor


class ViewedDraft(BoundDraft):
    """``inner`` under another view. With ``record``, every pass is kept: for runners that run bodies directly."""

    def __init__(
        self,
        inner: BoundDraft,
        media: MediaView = MediaView.TARGET_EMBEDDING,
        axes: Literal[1, 3] = 1,
        positions: PositionView = PositionView.TARGET,
        record: bool = False,
    ) -> None:
        self._inner = inner
        self._spec = evolve(inner.spec, media=media, position_axes=axes, positions=positions)
        self._record = record
        self.extended: list[Given] = []
        self.stepped: list[Given] = []

    @property
    def spec(self) -> DraftSpec:
        return self._spec

    @property
    def bound_to(self) -> LayerStackProvider:
        return self._inner.bound_to

    def embed(self, token_ids: Tensor) -> Tensor:
        assert bool(((token_ids >= 0) & (token_ids < self._spec.vocab.target_size)).all()) or not self._record
        return self._inner.embed(token_ids)

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        if self._record:
            self.extended.append(Given(embeds.clone(), inputs.positions.clone()))
        return self._inner.extend(embeds, features, inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        if self._record:
            self.stepped.append(Given(embeds.clone(), inputs.positions.clone()))
        return self._inner.step(embeds, state, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._inner.logits(hidden)

    def rows(self, count: int) -> Given:
        """The first ``count`` extended rows, pass after pass."""
        return Given(
            torch.cat([each.embeds for each in self.extended])[:count],
            torch.cat([each.positions for each in self.extended], dim=-1)[..., :count],
        )
