"""EAGLE drafts written out plainly in float64, row by row: what the adapters are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Form:
    """The sizes and switches a reference computes with, given by the test rather than read from a config."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    eps: float = 1e-5
    theta: float = 10000.0
    num_layers: int = 1
    norm_before_residual: bool = False
    norm_output: bool = False
    joint_norm: bool = False
    tap_norms: int = 0
    early_projection: bool = False
    fc: bool = True


class ReferenceAttention:
    """Softmax attention of each new row over all earlier rows of its layer and itself; an `Attend`."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.keys: dict[int, list[Tensor]] = {}
        self.values: dict[int, list[Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend row by row."""
        keys, values = self.keys.setdefault(layer, []), self.values.setdefault(layer, [])
        rows: list[Tensor] = []
        for q_row, k_row, v_row in zip(q, k, v, strict=True):
            keys.append(k_row.clone())
            values.append(v_row.clone())
            group = q.shape[1] // k.shape[1]
            seen = torch.stack(keys, dim=1).repeat_interleave(group, dim=0)
            read = torch.stack(values, dim=1).repeat_interleave(group, dim=0)
            scores = (seen @ q_row[:, :, None]).squeeze(-1) * self.scale
            rows.append((scores.softmax(dim=-1)[:, None] @ read).squeeze(1))
        return torch.stack(rows)


class ReferenceDraft:
    """One draft over one sequence, keeping the keys and values of every row it has run."""

    def __init__(self, tensors: Mapping[str, Tensor], form: Form, embedding: Tensor, head: Tensor) -> None:
        self.weights = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.form = form
        self.embedding, self.head = embedding.double(), head.double()
        self.attention = ReferenceAttention(form.head_dim**-0.5)

    def fuse(self, features: Tensor) -> Tensor:
        """EAGLE-3's ``h`` of target features."""
        features = features.double()
        if self.form.joint_norm:
            features = self.norm(features, "input_norm")
        if self.form.tap_norms:
            taps = features.chunk(self.form.tap_norms, dim=-1)
            features = torch.cat([self.norm(tap, f"fc_norm.{i}") for i, tap in enumerate(taps)], dim=-1)
        return self.linear(features, "fc") if self.form.fc else features

    def eagle3(self, token_ids: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Post-norm output, state and logits of EAGLE-3 rows on ``hidden``."""
        embeds, hidden = self.embedding[token_ids], hidden.double()
        if self.form.early_projection:
            hidden = self.linear(torch.cat([self.norm(embeds, "enorm"), hidden], dim=-1), "eh_proj")
        for index in range(self.form.num_layers):
            hidden = self.layer(index, embeds, hidden, positions)
        out = self.norm(hidden, "norm")
        return out, out if self.form.norm_output else hidden, out @ self.head.T

    def eagle1(self, token_ids: Tensor, feature: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, state and logits of EAGLE-1 rows on ``feature``."""
        embeds = self.embedding[token_ids]
        if "embed_layernorm.weight" in self.weights:
            embeds = self.norm(embeds, "embed_layernorm")
        hidden = self.linear(torch.cat([embeds, feature.double()], dim=-1), "fc")
        for index in range(self.form.num_layers):
            hidden = self.layer(index, embeds, hidden, positions)
        return hidden, hidden, hidden @ self.head.T

    def layer(self, index: int, embeds: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        """One decoder layer; which norms it has says what its attention is fed."""
        name = f"layers.{index}"
        has_input, has_hidden = (f"{name}.{norm}.weight" in self.weights for norm in ("input_layernorm", "hidden_norm"))
        residual = hidden
        if has_input and has_hidden:
            normed = self.norm(hidden, f"{name}.hidden_norm")
            if self.form.norm_before_residual and index == 0:
                residual = normed
            rows = torch.cat([self.norm(embeds, f"{name}.input_layernorm"), normed], dim=-1)
        elif has_input or has_hidden:
            rows = self.norm(hidden, f"{name}.{'input_layernorm' if has_input else 'hidden_norm'}")
        else:
            rows = hidden
        q, k, v = (self.linear(rows, f"{name}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (x.view(len(rows), -1, self.form.head_dim) for x in (q, k, v))
        if f"{name}.self_attn.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{name}.self_attn.q_norm"), self.norm(k, f"{name}.self_attn.k_norm")
        mixed = self.attention(index, self.rotated(q, positions), self.rotated(k, positions), v)
        hidden = residual + self.linear(mixed.reshape(len(rows), -1), f"{name}.self_attn.o_proj")
        rows = self.norm(hidden, f"{name}.post_attention_layernorm")
        gate, up = self.linear(rows, f"{name}.mlp.gate_proj"), self.linear(rows, f"{name}.mlp.up_proj")
        return hidden + self.linear(gate * torch.sigmoid(gate) * up, f"{name}.mlp.down_proj")

    def linear(self, x: Tensor, name: str) -> Tensor:
        """``x Wᵀ + b``."""
        out = x @ self.weights[f"{name}.weight"].T
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Root-mean-square norm."""
        return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.form.eps) * self.weights[f"{name}.weight"]

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding as complex multiplication of the two halves of each head."""
        half = self.form.head_dim // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(self.form.theta) / half))
        angles = positions.double()[:, None] * frequencies
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)
