"""The two halves of a decoder layer, with fused projections: `FusedAttention` and `GatedMlp`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from torch import Tensor

from outrider.checkpoint import Config
from outrider.errors import CheckpointError
from outrider.types import Attend, AttentionSpec
from outrider_adapters.nn.fused import fused_gate, fused_heads
from outrider_adapters.nn.norm import HeadNorms, RmsNorm
from outrider_adapters.nn.projection import Projection
from outrider_adapters.nn.rope import rotate
from outrider_adapters.nn.weights import WeightLoader

if TYPE_CHECKING:
    from outrider_adapters.nn.fused.ops import GateKind

__all__ = ["ACTIVATIONS", "Activation", "FusedAttention", "GatedMlp", "read_activation"]

Activation = Callable[[Tensor], Tensor]
"""An elementwise function that returns a fresh tensor."""


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return torch.sigmoid(1.702 * x).mul_(x)


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": torch.relu,
}
"""The gate functions by their name in ``hidden_act``."""

_FUSED_GATES: Mapping[Activation, GateKind] = {
    functional.silu: "silu",
    _gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
    _quick_gelu: "quick_gelu",
}


def read_activation(config: Config) -> str:
    """The ``hidden_act`` of ``config`` (``silu`` where it is absent), a key of `ACTIVATIONS`.

    Raises:
        CheckpointError: a function that is not in the table.
    """
    name = config.get_str("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise CheckpointError(f"{config.where}: 'hidden_act' is '{name}', allowed are {', '.join(ACTIVATIONS)}")
    return name


class FusedAttention:
    """Self-attention of one layer with one fused projection for queries, keys and values.

    ``qkv_weight [(Hq + 2·Hkv)·D, in_features]``, ``qkv_bias [(Hq + 2·Hkv)·D]``, ``o_weight [out_features, Hq·D]``,
    ``o_bias [out_features]``. ``in_features`` need not be the hidden size (2H in EAGLE-3). Matrices are kept as
    `Projection` keeps them.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        qkv_weight: Tensor,
        o_weight: Tensor,
        qkv_bias: Tensor | None = None,
        o_bias: Tensor | None = None,
        head_norms: HeadNorms | None = None,
    ) -> None:
        self.spec = spec
        self._qkv = Projection(qkv_weight, qkv_bias)
        self._o = Projection(o_weight, o_bias)
        self._head_norms = head_norms
        self._all_heads = spec.num_heads + 2 * spec.num_kv_heads
        self._split = (spec.num_heads + spec.num_kv_heads, spec.num_kv_heads)
        self._split_qk = (spec.num_heads, spec.num_kv_heads)
        self._o_width = spec.num_heads * spec.head_dim
        norm = None if head_norms is None else (head_norms.weight, head_norms.eps)
        self._fused = fused_heads(qkv_weight, spec.num_heads, spec.num_kv_heads, spec.head_dim, norm)

    @classmethod
    def load(
        cls,
        loader: WeightLoader,
        spec: AttentionSpec,
        in_features: int,
        out_features: int,
        qkv_bias: bool = False,
        o_bias: bool = False,
        qk_norm_eps: float | None = None,
    ) -> FusedAttention:
        """The attention whose tensors ``loader`` holds as ``q_proj`` … ``o_proj``, or fused as ``qkv_proj``.

        ``qk_norm_eps`` asks for ``q_norm`` and ``k_norm`` over each head. Faults are noted by ``loader``.
        """
        q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        rows = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))
        weight = loader.fused([(f"{name}.weight", n) for name, n in rows], "qkv_proj.weight", (in_features,))
        bias = loader.fused([(f"{name}.bias", n) for name, n in rows], "qkv_proj.bias") if qkv_bias else None
        norms = None
        if qk_norm_eps is not None:
            q_weight = loader.tensor("q_norm.weight", (spec.head_dim,))
            k_weight = loader.tensor("k_norm.weight", (spec.head_dim,))
            norms = HeadNorms(q_weight, k_weight, spec.num_heads, spec.num_kv_heads, qk_norm_eps)
        return cls(
            spec,
            weight,
            loader.tensor("o_proj.weight", (out_features, q_rows)),
            bias,
            loader.tensor("o_proj.bias", (out_features,)) if o_bias else None,
            norms,
        )

    def forward(
        self, x: Tensor, layer_index: int, cos: Tensor, sin: Tensor, attend: Attend, residual: Tensor | None = None
    ) -> Tensor:
        """Fresh ``[T, out_features]``: attention over rows ``x [T, in_features]``, plus ``residual`` if one is given.

        Calls ``attend(layer_index, q, k, v)`` once, with q and k rotated by `Rope.rotation`'s ``cos`` and ``sin``; the
        three are views, dense in the last axis. ``x`` and ``residual [T, out_features]`` are left as they are.
        Device only, safe in a capture.
        """
        mixed = self._mix(x, layer_index, cos, sin, attend)
        return self._o(mixed) if residual is None else self._o.plus(mixed, residual)

    def forward_and_norm(
        self,
        x: Tensor,
        layer_index: int,
        cos: Tensor,
        sin: Tensor,
        attend: Attend,
        residual: Tensor,
        norm: RmsNorm,
    ) -> tuple[Tensor, Tensor]:
        """`forward` with ``residual``, and its ``norm``: both fresh ``[T, out_features]``."""
        return norm.of_sum(self._o, self._mix(x, layer_index, cos, sin, attend), residual)

    def _mix(self, x: Tensor, layer_index: int, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """What attention gives, ``[T, Hq·D]``."""
        qkv = self._qkv(x)
        if self._fused is not None:
            q, k, v = self._fused(qkv, cos, sin)
            return attend(layer_index, q, k, v).reshape(-1, self._o_width)
        heads = qkv.view(-1, self._all_heads, self.spec.head_dim)
        qk, v = torch.split_with_sizes(heads, self._split, 1)
        if self._head_norms is not None:
            qk = self._head_norms(qk)
        q, k = torch.split_with_sizes(rotate(qk, cos, sin), self._split_qk, 1)
        return attend(layer_index, q, k, v).reshape(-1, self._o_width)


class GatedMlp:
    """Feed-forward ``down(act(gate(x)) · up(x))`` with one fused projection for gate and up.

    ``gate_up_weight [2·I, H]`` (gate first), ``gate_up_bias [2·I]``, ``down_weight [H, I]``, ``down_bias [H]``.
    Matrices are kept as `Projection` keeps them.

    Source: Shazeer 2020 (GLU variants), equation 5.
    """

    def __init__(
        self,
        activation: Activation,
        gate_up_weight: Tensor,
        down_weight: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        self._activation = activation
        self._gate_up = Projection(gate_up_weight, gate_up_bias)
        self._down = Projection(down_weight, down_bias)
        self._split = (gate_up_weight.shape[0] // 2,) * 2
        self._fused = fused_gate(gate_up_weight, _FUSED_GATES.get(activation))

    @classmethod
    def load(
        cls, loader: WeightLoader, hidden_size: int, intermediate_size: int, activation: str, bias: bool = False
    ) -> GatedMlp:
        """The feed-forward that ``loader`` holds as ``gate_proj``, ``up_proj`` (or ``gate_up_proj``) and ``down_proj``.

        ``activation`` is a key of `ACTIVATIONS`. Faults are noted by ``loader``.
        """
        rows = (("gate_proj", intermediate_size), ("up_proj", intermediate_size))
        return cls(
            ACTIVATIONS[activation],
            loader.fused([(f"{name}.weight", n) for name, n in rows], "gate_up_proj.weight", (hidden_size,)),
            loader.tensor("down_proj.weight", (hidden_size, intermediate_size)),
            loader.fused([(f"{name}.bias", n) for name, n in rows], "gate_up_proj.bias") if bias else None,
            loader.tensor("down_proj.bias", (hidden_size,)) if bias else None,
        )

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Fresh ``[T, H]`` for rows ``x [T, H]``, plus ``residual [T, H]`` if one is given; both are left as they are.

        Device only, safe in a capture.
        """
        # A lone row runs through both maps twice over; the residual is spread over the pair, whose second row is dropped.
        single = self._gate_up.wants_pairs and x.shape[0] == 1
        gated = self._gate(x.repeat(2, 1) if single else x)
        out = self._down(gated) if residual is None else self._down.plus(gated, residual)
        return out.narrow(0, 0, 1) if single else out

    def forward_and_norm(self, x: Tensor, residual: Tensor, norm: RmsNorm) -> tuple[Tensor, Tensor]:
        """`forward` with ``residual``, and its ``norm``: both fresh ``[T, H]``."""
        if norm.fused is None or self._gate_up.wants_pairs:
            total = self.forward(x, residual)
            return total, norm(total)
        return norm.of_sum(self._down, self._gate(x), residual)

    def _gate(self, x: Tensor) -> Tensor:
        both = self._gate_up(x)
        if self._fused is not None:
            return self._fused(both)
        gate, up = torch.split_with_sizes(both, self._split, 1)
        return self._activation(gate).mul_(up)
