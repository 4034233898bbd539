"""A small random transformer in plain torch behind `LayerStackProvider`: quick to run, easy to break on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import LayerStackProvider, SharedWeights, Target
from outrider.types import Attend, AttentionSpec, ModelSpec, PositionScheme, StackInputs, StackOutput

__all__ = ["CPU", "ToyLayer", "ToySizes", "ToyStack", "ToyWeights", "rms_norm", "rotated", "toy_target"]

CPU = torch.device("cpu")


@frozen
class ToySizes:
    """Sizes of a toy."""

    hidden: int = 16
    vocab: int = 48
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 8
    max_positions: int = 96

    @property
    def attention(self) -> AttentionSpec:
        return AttentionSpec(self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5)


def rms_norm(x: Tensor) -> Tensor:
    """Rows of unit mean square; rows of zeros stay zeros."""
    return x * (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).rsqrt()


def rotated(x_THD: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding over the whole head; of three axes each frequency in turn follows another."""
    half = x_THD.shape[-1] // 2
    if positions.dim() == 1:
        turned_T1F = positions[:, None, None]
    else:
        turned_T1F = positions.index_select(0, torch.arange(half).remainder(positions.shape[0])).T[:, None]
    angles = turned_T1F * torch.logspace(0, -1.5, half)
    first, second = x_THD[..., :half], x_THD[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@frozen(eq=False)
class ToyLayer:
    """Pre-norm attention and a feed-forward, without biases: a row of zeros stays a row of zeros."""

    sizes: ToySizes
    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def random(cls, sizes: ToySizes, generator: torch.Generator) -> ToyLayer:
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        return cls(
            sizes,
            qkv=1.5 * random_matrix(generator, queries + 2 * keys, sizes.hidden),
            out=random_matrix(generator, sizes.hidden, queries),
            up=random_matrix(generator, 2 * sizes.hidden, sizes.hidden),
            down=random_matrix(generator, sizes.hidden, 2 * sizes.hidden),
        )

    def forward(self, hidden: Tensor, index: int, positions: Tensor, attend: Attend) -> Tensor:
        """The residual stream after this layer; ``hidden`` is left as it is."""
        sizes, rows = self.sizes, hidden.shape[0]
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        q, k, v = (rms_norm(hidden) @ self.qkv.T).split_with_sizes([queries, keys, keys], dim=-1)
        attended = attend(
            index,
            rotated(q.view(rows, sizes.heads, -1), positions),
            rotated(k.view(rows, sizes.kv_heads, -1), positions),
            v.view(rows, sizes.kv_heads, -1),
        )
        hidden = hidden + attended.reshape(rows, -1) @ self.out.T
        return hidden + torch.tanh(rms_norm(hidden) @ self.up.T) @ self.down.T


def random_matrix(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """``[rows, columns]`` float32 that keeps the scale of what it is applied to."""
    return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)


@frozen(eq=False)
class ToyWeights(SharedWeights):
    """Embedding and head, ``[V, H]`` each."""

    shared_embedding: Tensor
    shared_head: Tensor

    @property
    def embedding(self) -> Tensor:
        return self.shared_embedding

    @property
    def head(self) -> Tensor:
        return self.shared_head


class ToyStack(LayerStackProvider):
    """The toy. ``null_first``: the embedding of id 0 is zero, so that id stays zero in every layer. ``axes``: of positions."""

    def __init__(
        self, sizes: ToySizes | None = None, seed: int = 0, null_first: bool = False, axes: Literal[1, 3] = 1
    ) -> None:
        self.sizes = sizes = ToySizes() if sizes is None else sizes
        self.axes: Literal[1, 3] = axes
        generator = torch.Generator().manual_seed(seed)
        embedding = torch.randn(sizes.vocab, sizes.hidden, generator=generator)
        if null_first:
            embedding[0] = 0.0
        self.weights = ToyWeights(embedding, random_matrix(generator, sizes.vocab, sizes.hidden) * 3.0)
        self.layers: Sequence[ToyLayer] = [ToyLayer.random(sizes, generator) for _ in range(sizes.layers)]

    @property
    def spec(self) -> ModelSpec:
        sizes = self.sizes
        return ModelSpec(
            name="toy",
            hidden_size=sizes.hidden,
            vocab_size=sizes.vocab,
            layers=(sizes.attention,) * sizes.layers,
            max_positions=sizes.max_positions,
            dtype=torch.float32,
            device=CPU,
            positions=PositionScheme(self.axes),
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.weights.embedding.index_select(0, token_ids)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        streams = [hidden]
        for index, layer in enumerate(self.layers):
            streams.append(layer.forward(streams[-1], index, inputs.positions, inputs.attend))
        final = rms_norm(streams[-1])
        return StackOutput(
            final, tuple(final if tap.boundary is None else streams[tap.boundary] for tap in inputs.taps)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weights.head.T


def toy_target(
    sizes: ToySizes | None = None, seed: int = 0, null_first: bool = False, eos_ids: tuple[int, ...] = ()
) -> Target:
    """A random target that shares its weights."""
    stack = ToyStack(sizes, seed, null_first)
    return Target(stack, stack.weights, eos_ids=eos_ids)
