"""EAGLE-3 drafts: the taps are fused once per verified row, then one layer feeds on its own output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import BoundDraft, Target, UnboundDraft
from outrider.types import DraftOutput, DraftSpec, StackInputs
from outrider_adapters.eagle.binding import JoinedWeights, bind_spec, join_weights
from outrider_adapters.eagle.eagle3_plan import Eagle3Plan
from outrider_adapters.eagle.ends import DraftEnds
from outrider_adapters.eagle.layer import DraftLayer
from outrider_adapters.nn import JoinedNorms, Projection, RmsNorm, Rope, WeightLoader

__all__ = ["BoundEagle3", "Eagle3Draft", "Eagle3Weights", "TapFusion"]


class TapFusion:
    """``h = fc(taps)``, with one norm over all taps or one per tap before it where the draft was trained so."""

    def __init__(
        self, fc: Tensor | None, bias: Tensor | None, joint_norm: RmsNorm | None, tap_norms: Sequence[RmsNorm]
    ) -> None:
        """``fc [H, A·Ht]``; ``None`` hands the single tap on as it is (no ``use_aux_hidden_state``)."""
        self._fc = None if fc is None else Projection(fc, bias)
        self._joint_norm = joint_norm
        self._num_taps, self._tap_norms = len(tap_norms), JoinedNorms(tap_norms)

    @classmethod
    def load(cls, loader: WeightLoader, plan: Eagle3Plan) -> TapFusion:
        """The fusion of ``plan``; ``loader`` stands at the root of the checkpoint."""
        draft, flags, eps = plan.draft, plan.flags, plan.draft.sizes.eps
        hidden, target_hidden = draft.sizes.hidden_size, draft.target_hidden_size
        width = draft.taps.count * target_hidden
        tap_names = [f"fc_norm.{i}.weight" for i in range(draft.taps.count)] if flags.tap_norms else []
        return cls(
            loader.tensor("fc.weight", (hidden, width)) if flags.fc else None,
            loader.tensor("fc.bias", (hidden,)) if flags.fc and draft.fc_bias else None,
            RmsNorm(loader.tensor("input_norm.weight", (width,)), eps) if flags.joint_norm else None,
            [RmsNorm(loader.tensor(name, (target_hidden,)), eps) for name in tap_names],
        )

    def __call__(self, features: Tensor) -> Tensor:
        """``[T, H]`` of ``features [T, A·Ht]``, which are left as they are. Device only, safe in a capture."""
        if self._joint_norm is not None:
            features = self._joint_norm(features)
        if self._num_taps:
            features = self._tap_norms(*features.chunk(self._num_taps, dim=-1))
        return features if self._fc is None else self._fc(features)


class EarlyProjection:
    """Merges embedding and hidden state before an ordinary layer: ``eh_proj(cat[enorm(embed), h])`` (ModelOpt)."""

    def __init__(self, norm: RmsNorm, weight: Tensor, bias: Tensor | None) -> None:
        self._norm, self._merge = norm, Projection(weight, bias)

    @classmethod
    def load(cls, loader: WeightLoader, plan: Eagle3Plan) -> EarlyProjection | None:
        """The projection of ``plan``, or ``None`` where it has none."""
        hidden = plan.draft.sizes.hidden_size
        if not plan.flags.early_projection:
            return None
        return cls(
            RmsNorm(loader.tensor("enorm.weight", (hidden,)), plan.draft.sizes.eps),
            loader.tensor("eh_proj.weight", (hidden, 2 * hidden)),
            loader.tensor("eh_proj.bias", (hidden,)) if plan.flags.early_bias else None,
        )

    def __call__(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """Fresh ``[T, H]`` of ``embeds [T, H]`` and ``hidden [T, H]``."""
        return self._merge(torch.cat((self._norm(embeds), hidden), dim=-1))


@frozen(eq=False)
class Eagle3Weights:
    """Everything of an EAGLE-3 draft but embedding and head, which a target may supply."""

    fusion: TapFusion
    early: EarlyProjection | None
    layers: tuple[DraftLayer, ...]
    norm: RmsNorm
    rope: Rope
    norm_output: bool


class Eagle3Draft(UnboundDraft):
    """A loaded EAGLE-3 draft that has not met its target."""

    def __init__(
        self,
        spec: DraftSpec,
        weights: Eagle3Weights,
        embedding: Tensor | None,
        head: Tensor | None,
        taps_by_depth: bool,
        media_note: str | None = None,
    ) -> None:
        """``embedding [V, H]`` and ``head [Dv, H]`` are its own, ``None`` where the target supplies them.

        ``media_note``: what to say of `DraftSpec.media` beside a target with media.
        """
        self._spec, self._weights = spec, weights
        self._embedding, self._head = embedding, head
        self._taps_by_depth, self._media_note = taps_by_depth, media_note

    @property
    def spec(self) -> DraftSpec:
        """What the checkpoint says; ``taps`` is empty where they follow from the target's depth (see the notes)."""
        return self._spec

    def bind(self, target: Target) -> BoundEagle3:
        """The draft with its final taps and weights; see `UnboundDraft.bind`."""
        spec = bind_spec(self._spec, target, self._taps_by_depth, self._media_note)
        return BoundEagle3(spec, self._weights, join_weights(spec, target, self._embedding, self._head))


class BoundEagle3(DraftEnds, BoundDraft):
    """An EAGLE-3 draft with final weights.

    `DraftOutput.hidden` is the output after the final norm, which the head takes; `DraftOutput.state` the one before
    it, or after it for drafts trained so (``norm_output``). The first is never written to by later calls.

    Source: EAGLE-3 (Li et al. 2025), section 3.
    """

    def __init__(self, spec: DraftSpec, weights: Eagle3Weights, joined: JoinedWeights) -> None:
        super().__init__(spec, joined)
        self._weights = weights

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run verified rows: ``h = fc(features)`` takes the place of the state; see `BoundDraft.extend`."""
        fed = self._given(features, f"{self._spec.feature_width} target features")
        return self._run(embeds, self._weights.fusion(fed), inputs)

    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run drafted rows on the previous step's ``state``, which skips ``fc``; see `BoundDraft.step`."""
        return self._run(embeds, self._given(state, "the state of the step before"), inputs)

    def _run(self, embeds: Tensor, hidden: Tensor, inputs: StackInputs) -> DraftOutput:
        weights = self._weights
        cos, sin = weights.rope.rotation(inputs.positions, inputs.lengths)
        if weights.early is not None:
            hidden = weights.early(embeds, hidden)
        *inner, last = weights.layers
        for layer in inner:
            hidden = layer.forward(embeds, hidden, cos, sin, inputs.attend)
        hidden, normed = last.forward_and_norm(embeds, hidden, cos, sin, inputs.attend, weights.norm)
        return DraftOutput(normed, normed if weights.norm_output else hidden)
