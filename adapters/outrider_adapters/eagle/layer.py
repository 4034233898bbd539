"""One decoder layer of an EAGLE draft: joined (embedding beside hidden state) or ordinary."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types import Attend
from outrider_adapters.eagle.decoder import DecoderSizes, LayerForm
from outrider_adapters.nn import FusedAttention, GatedMlp, RmsNorm, WeightLoader

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
        self._post_norm, self._input_norm, self._embed_norm = post_norm, input_norm, embed_norm
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
        normed = hidden if self._input_norm is None else self._input_norm(hidden)
        residual = normed if self._normed_residual else hidden
        rows = normed if self._embed_norm is None else torch.cat((self._embed_norm(embeds), normed), dim=-1)
        mixed = self._attention.forward(rows, self._index, cos, sin, attend, residual)
        return self._mlp.forward(self._post_norm(mixed), mixed)
