"""A target of your own: a complete model behind `LayerStackProvider`, in plain PyTorch. Run: python examples/custom_target.py

The weights are random, since the point is the contract: `outrider.conformance` tells whether it is kept.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider import NgramBuilder, SpeculativeModel, registry
from outrider.conformance import check_target
from outrider.interfaces import LayerStackProvider, SharedWeights, Target
from outrider.types import AttentionSpec, LogitScaling, ModelSpec, StackInputs, StackOutput

HIDDEN, LAYERS, HEADS, HEAD_DIM, VOCAB, CONTEXT = 64, 2, 4, 16, 256, 512


def rms_norm(x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).rsqrt()


def rotate(x_THD: Tensor, positions_T: Tensor) -> Tensor:
    """Rotary position embedding. Positions are always given, never counted: a tree has siblings at one position."""
    first, second = x_THD.chunk(2, dim=-1)
    frequencies = torch.logspace(0, -3, first.shape[-1], device=x_THD.device)
    angles = positions_T[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@frozen(eq=False)
class PicoWeights(SharedWeights):
    """Embedding and head, for drafts that share them. Here they are one tensor."""

    table: Tensor

    @property
    def embedding(self) -> Tensor:
        return self.table

    @property
    def head(self) -> Tensor:
        return self.table


class PicoStack(LayerStackProvider):
    """Pre-norm layers of attention and feed-forward. No cache, no mask, no batch: `attend` sees to all of that."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weights = PicoWeights(torch.randn(VOCAB, HIDDEN, generator=generator) * HIDDEN**-0.5)
        self._qkv = torch.randn(LAYERS, 3 * HIDDEN, HIDDEN, generator=generator) * HIDDEN**-0.5
        self._out = torch.randn(LAYERS, HIDDEN, HIDDEN, generator=generator) * HIDDEN**-0.5
        self._mlp = torch.randn(LAYERS, HIDDEN, HIDDEN, generator=generator) * HIDDEN**-0.5

    @property
    def spec(self) -> ModelSpec:
        attention = AttentionSpec(num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
        place = self.weights.table
        sizes = (HIDDEN, VOCAB, (attention,) * LAYERS, CONTEXT)
        return ModelSpec("pico", *sizes, place.dtype, place.device, logit_scaling=LogitScaling(scale=4.0))

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.weights.table.index_select(0, token_ids)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        streams = [hidden]  # streams[i] is boundary i, the residual stream before layer i
        for layer in range(LAYERS):
            x = streams[-1]
            q, k, v = (rms_norm(x) @ self._qkv[layer].T).view(len(x), 3, HEADS, HEAD_DIM).unbind(1)
            attended = inputs.attend(layer, rotate(q, inputs.positions), rotate(k, inputs.positions), v)
            x = x + attended.reshape(len(x), HIDDEN) @ self._out[layer].T
            streams.append(x + torch.tanh(rms_norm(x) @ self._mlp[layer].T))
        final = rms_norm(streams[-1])
        taps = tuple(final if tap.boundary is None else streams[tap.boundary] for tap in inputs.taps)
        return StackOutput(final, taps)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.spec.logit_scaling.apply(hidden @ self.weights.head.T)


def pico_target() -> Target:
    """The stack with the powers it has: it shares its weights; it has no tokenizer, no media and no end id."""
    stack = PicoStack()
    return Target(stack, weights=stack.weights)


def main() -> None:
    sdpa = registry.attention("sdpa")
    print(check_target(pico_target(), attention=sdpa))
    model = SpeculativeModel(pico_target(), NgramBuilder(4), attention=sdpa, runner=lambda: registry.runner("eager"))
    drafted = model.generate((1, 2, 3), max_new_tokens=40)
    print(drafted.token_ids == model.without_draft().generate((1, 2, 3), max_new_tokens=40).token_ids)


if __name__ == "__main__":
    main()
