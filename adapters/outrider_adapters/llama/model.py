"""`LlamaStack`: a decoder-only model of the Llama family, cut at embedding, layers and head."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as functional
from attrs import frozen
from torch import Tensor

from outrider.interfaces import LayerStackProvider
from outrider.types import ModelSpec, StackInputs, StackOutput
from outrider_adapters.llama.config import LlamaConfig
from outrider_adapters.nn import FusedAttention, GatedMlp, RmsNorm, Rope, WeightLoader, head_logits

__all__ = ["DecoderLayer", "LlamaStack", "LlamaWeights"]


@frozen(eq=False)
class LlamaWeights:
    """The embedding and the head, ``[V, H]`` each; one storage where they are tied."""

    embedding: Tensor
    head: Tensor


@frozen(eq=False)
class DecoderLayer:
    """One pre-norm layer: norm, attention, residual, norm, feed-forward, residual."""

    input_norm: RmsNorm
    attention: FusedAttention
    post_attention_norm: RmsNorm
    mlp: GatedMlp


class LlamaStack(LayerStackProvider):
    """A Llama-family model in inference; holds weights, and no caches, masks or batches."""

    def __init__(
        self, spec: ModelSpec, weights: LlamaWeights, layers: Sequence[DecoderLayer], norm: RmsNorm, rope: Rope
    ) -> None:
        self._spec = spec
        self._weights = weights
        # A layer's last sum and the next one's first norm are one step.
        norms = (*(layer.input_norm for layer in layers), norm)
        self._first_norm = norms[0]
        self._layers = tuple(zip(layers, norms[1:], strict=True))
        self._rope = rope

    @property
    def spec(self) -> ModelSpec:
        """Sizes, per-layer attention, positions, dtype and device; constant."""
        return self._spec

    @property
    def weights(self) -> LlamaWeights:
        """The embedding and the head, the very tensors the stack uses."""
        return self._weights

    def embed(self, token_ids: Tensor) -> Tensor:
        """Fresh embeddings ``[T, H]`` of ``token_ids [T]`` int64. Device only, safe in a capture."""
        return functional.embedding(token_ids, self._weights.embedding)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        """Final-norm hidden state ``[T, H]`` and the taps asked, in order, for embedded input ``hidden [T, H]``.

        A residual stream is never changed once it exists, so taps are no copies: each is the stream itself (boundary 0
        is ``hidden``), asked twice the same tensor twice. Device only, safe in a capture.
        """
        attend = inputs.attend
        cos, sin = self._rope.rotation(inputs.positions, inputs.lengths)
        streams = [hidden]
        stream, normed = hidden, self._first_norm(hidden)
        for index, (layer, next_norm) in enumerate(self._layers):
            stream, normed = layer.attention.forward_and_norm(
                normed, index, cos, sin, attend, stream, layer.post_attention_norm
            )
            stream, normed = layer.mlp.forward_and_norm(normed, stream, next_norm)
            streams.append(stream)
        taps = tuple(normed if tap.boundary is None else streams[tap.boundary] for tap in inputs.taps)
        return StackOutput(normed, taps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Fresh logits ``[R, V]`` of final-norm rows ``hidden [R, H]``, see `head_logits`. Device only, safe in a capture."""
        return head_logits(hidden, self._weights.head)


def build_stack(
    config: LlamaConfig, spec: ModelSpec, body: WeightLoader, heads: WeightLoader, own_head: bool
) -> LlamaStack:
    """The stack, its weights below the prefixes of ``body`` and, for ``lm_head``, of ``heads``; they note the faults.

    The head is the embedding unless ``own_head``.
    """
    hidden = config.hidden_size
    embedding = body.tensor("embed_tokens.weight", (config.vocab_size, hidden))
    layers: list[DecoderLayer] = []
    for index, attention in enumerate(spec.layers):
        scope = body.scope(f"layers.{index}.")
        layers.append(
            DecoderLayer(
                RmsNorm(scope.tensor("input_layernorm.weight", (hidden,)), config.rms_norm_eps),
                FusedAttention.load(
                    scope.scope("self_attn."),
                    attention,
                    hidden,
                    hidden,
                    config.qkv_bias,
                    config.o_bias,
                    config.rms_norm_eps if config.family.qk_norm else None,
                ),
                RmsNorm(scope.tensor("post_attention_layernorm.weight", (hidden,)), config.rms_norm_eps),
                GatedMlp.load(
                    scope.scope("mlp."), hidden, config.intermediate_size, config.activation, config.mlp_bias
                ),
            )
        )
    norm = RmsNorm(body.tensor("norm.weight", (hidden,)), config.rms_norm_eps)
    head = heads.tensor("lm_head.weight", (config.vocab_size, hidden)) if own_head else embedding
    if not own_head:
        heads.ignore("lm_head.weight")
    rope = Rope(config.rope, config.max_positions, spec.device, spec.dtype)
    return LlamaStack(spec, LlamaWeights(embedding, head), layers, norm, rope)
