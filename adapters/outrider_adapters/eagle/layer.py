"""One decoder layer of an EAGLE draft: joined (embedding beside hidden state) or ordinary."""

from __future__ import annotations

from torch import Tensor

from outrider.types import Attend
from outrider_adapters.eagle.decoder import DecoderSizes, LayerForm
from outrider_adapters.nn import FusedAttention, GatedMlp, JoinedNorms, RmsNorm, WeightLoader

__all__ = ["DraftLayer"]


class DraftLayer:
    """A pre-norm decoder layer whose attention may take ``cat[norm(embed), norm(hidden)]``, 2H wide.

    Source: EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025), figure 5.
    """

    def __init__(
        self,
        index: int,
        attention: FusedAttention,
        mlp: GatedMlp,
        post_norm: RmsNorm,
        input_norm: RmsNorm | None,
        embed_norm: RmsNorm | None,
        normed_residual: bool,
    ) -> None:
        """``embed_norm`` makes the layer a joined one; ``normed_residual`` adds to the normed hidden state."""
        self._index = index
        self._attention, self._mlp = attention, mlp
        self._post_norm, self._input_norm = post_norm, input_norm
        self._joined_norms: JoinedNorms | None = None
        if embed_norm is not None and input_norm is not None:
            self._joined_norms = JoinedNorms((embed_norm, input_norm))
        self._normed_residual = normed_residual

    @classmethod
    def load(
        cls, loader: WeightLoader, sizes: DecoderSizes, form: LayerForm, normed_residual: bool = False
    ) -> DraftLayer:
        """The layer that ``loader`` (at the root of the checkpoint) holds in ``form``."""
        names = [f"layers.{form.index}.", f"midlayer.{form.index}."]
        scope = loader.scope(*names, "midlayer.") if form.index == 0 else loader.scope(*names)
        hidden, eps = sizes.hidden_size, sizes.eps

        def norm(name: str) -> RmsNorm:
            return RmsNorm(scope.tensor(f"{name}.weight", (hidden,)), eps)

        input_name = "hidden_norm" if form.joined else form.norm
        return cls(
            form.index,
            FusedAttention.load(
                scope.scope("self_attn."),
                sizes.attention(form.index),
                form.input_width,
                hidden,
                form.qkv_bias,
                form.output_bias,
                eps if form.qk_norm else None,
            ),
            GatedMlp.load(scope.scope("mlp."), hidden, sizes.intermediate_size, sizes.hidden_act, form.mlp_bias),
            norm("post_attention_layernorm"),
            None if input_name is None else norm(input_name),
            norm("input_layernorm") if form.joined else None,
            normed_residual,
        )

    def forward(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Fresh ``[T, H]`` for ``embeds [T, H]`` (used by a joined layer only) and ``hidden [T, H]``, both left alone.

        Calls ``attend`` once. Device only, safe in a capture.
        """
        mixed, normed = self._attend(embeds, hidden, cos, sin, attend)
        return self._mlp.forward(normed, mixed)

    def forward_and_norm(
        self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend, norm: RmsNorm
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and its ``norm``: both fresh ``[T, H]``."""
        mixed, normed = self._attend(embeds, hidden, cos, sin, attend)
        return self._mlp.forward_and_norm(normed, mixed, norm)

    def _attend(
        self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """The residual stream after attention, and its norm. The normed hidden state is the last part of the rows."""
        if self._joined_norms is not None:
            rows = self._joined_norms(embeds, hidden)
        else:
            rows = hidden if self._input_norm is None else self._input_norm(hidden)
        residual = hidden
        if self._normed_residual:
            width = hidden.shape[-1]
            residual = rows.narrow(-1, rows.shape[-1] - width, width)
        return self._attention.forward_and_norm(rows, self._index, cos, sin, attend, residual, self._post_norm)
