"""Where the small tensors go in the wide ones: an index map per axis, and `Placement`, the wide tensor they make.

See `benchmarks.widen` for the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import torch
from attrs import frozen
from torch import Tensor

from benchmarks._widen_spec import StackSizes
from outrider.checkpoint import TensorInfo
from outrider.errors import CheckpointError

__all__ = ["Axis", "AxisMap", "Placement", "Rule", "StackMap"]


class Axis(Enum):
    """What one axis of a weight counts."""

    HIDDEN = "hidden"
    INPUT = "input of attention"
    """The hidden size; twice that in an EAGLE-3 draft: the embedding, then the hidden state."""
    TAPS = "taps"
    QUERY = "query heads"
    KEY = "kv heads"
    FFN = "feed-forward"
    HEAD_VOCAB = "vocabulary of the head"
    VOCAB = "target vocabulary"


@frozen(eq=False)
class AxisMap:
    """An axis of ``size`` in which entry i of the small one stands at ``places[i]`` (int64, CPU); the rest is padding."""

    size: int
    places: Tensor

    @classmethod
    def first(cls, size: int, count: int) -> AxisMap:
        """The small axis in front."""
        return cls(size, torch.arange(count))

    def repeated(self, times: int) -> AxisMap:
        """``times`` such axes one behind the other."""
        return AxisMap(times * self.size, torch.cat([self.places + part * self.size for part in range(times)]))


@frozen
class Rule:
    """How the weights of one name are placed: their axes, a factor, and what padding rows hold."""

    axes: tuple[Axis, ...]
    factor: float = 1.0
    mean_rows: bool = False


@frozen(eq=False)
class Placement:
    """A wide tensor: the small tensor ``source``, times ``factor``, at the crossings of ``maps``; zero elsewhere.

    ``source`` ``None`` is zero everywhere. ``mean_rows`` fills the padding rows with the mean of the small ones.
    """

    source: str | None
    maps: tuple[AxisMap, ...]
    factor: float = 1.0
    mean_rows: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the wide tensor."""
        return tuple(axis.size for axis in self.maps)

    def make(self, small: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A fresh tensor of ``shape`` on ``device``; each of its values is rounded once, to ``dtype``."""
        wide = torch.zeros(self.shape, dtype=dtype, device=device)
        exact = small.to(torch.float64) * self.factor
        if self.mean_rows:
            row = torch.zeros(self.shape[1:], dtype=torch.float64)
            row[self.maps[1].places] = exact.mean(dim=0)
            wide.copy_(row.to(device=device, dtype=dtype).expand(self.shape))
        crossings = torch.meshgrid(*(axis.places for axis in self.maps), indexing="ij")
        wide[tuple(places.to(device) for places in crossings)] = exact.to(device=device, dtype=dtype)
        return wide

    def check(self, name: str, info: TensorInfo) -> None:
        """Do nothing where the small tensor ``name`` has the shape that ``maps`` place.

        Raises:
            CheckpointError: it has another.
        """
        placed = tuple(len(axis.places) for axis in self.maps)
        if info.shape != placed:
            raise CheckpointError(f"tensor '{name}' is {list(info.shape)}, the config makes it {list(placed)}")


class StackMap:
    """The axes and rules by which one small transformer is placed in a wide one."""

    def __init__(self, small: StackSizes, wide: StackSizes, vocab: tuple[int, int], num_taps: int | None) -> None:
        """``vocab``: the target's small and wide vocabulary. ``num_taps``: of an EAGLE-3 draft, ``None`` for a target."""
        hidden = AxisMap.first(wide.hidden, small.hidden)
        self._axes: Mapping[Axis, AxisMap] = {
            Axis.HIDDEN: hidden,
            Axis.INPUT: hidden if num_taps is None else hidden.repeated(2),
            Axis.TAPS: hidden.repeated(num_taps or 1),
            Axis.QUERY: _heads(wide.q_heads, _query_heads(small, wide), small, wide),
            Axis.KEY: _heads(wide.kv_heads, torch.arange(small.kv_heads), small, wide),
            Axis.FFN: AxisMap.first(wide.ffn, small.ffn),
            Axis.HEAD_VOCAB: AxisMap.first(wide.vocab, small.vocab),
            Axis.VOCAB: AxisMap.first(vocab[1], vocab[0]),
        }
        norm = Rule((Axis.HIDDEN,), math.sqrt(small.hidden / wide.hidden))
        self._rules: Mapping[str, Rule] = {
            "embed_tokens": Rule((Axis.VOCAB, Axis.HIDDEN)),
            "lm_head": Rule((Axis.HEAD_VOCAB, Axis.HIDDEN), mean_rows=True),
            "input_layernorm": norm,
            "post_attention_layernorm": norm,
            "hidden_norm": norm,
            "norm": norm,
            "q_proj": Rule((Axis.QUERY, Axis.INPUT), math.sqrt(wide.head_dim / small.head_dim)),
            "k_proj": Rule((Axis.KEY, Axis.INPUT)),
            "v_proj": Rule((Axis.KEY, Axis.INPUT)),
            "o_proj": Rule((Axis.HIDDEN, Axis.QUERY)),
            "gate_proj": Rule((Axis.FFN, Axis.HIDDEN)),
            "up_proj": Rule((Axis.FFN, Axis.HIDDEN)),
            "down_proj": Rule((Axis.HIDDEN, Axis.FFN)),
            "fc": Rule((Axis.HIDDEN, Axis.TAPS)),
        }

    def place(self, source: str, name: str | None = None) -> Placement:
        """Where the small tensor ``source`` goes, by the rule of ``name`` (by default its own).

        Raises:
            CheckpointError: there is no rule for it: a bias, or a norm that Llama has not.
        """
        named = source if name is None else name
        kind = named.removesuffix(".weight").rpartition(".")[2]
        if not named.endswith(".weight") or kind not in self._rules:
            raise CheckpointError(
                f"tensor '{source}' has no place in a wider Llama; placed are {', '.join(self._rules)}"
            )
        rule = self._rules[kind]
        return Placement(source, tuple(self._axes[axis] for axis in rule.axes), rule.factor, rule.mean_rows)


def _query_heads(small: StackSizes, wide: StackSizes) -> Tensor:
    """Wide query head of each small one: the same place in the group of the same kv head."""
    heads = torch.arange(small.q_heads)
    return heads // small.group * wide.group + heads % small.group


def _heads(count: int, heads: Tensor, small: StackSizes, wide: StackSizes) -> AxisMap:
    """Rows of all heads: small head h is ``heads[h]``, and its rotary pair i the pair of the same frequency.

    A pair is dimensions (i, i + d/2). Of D wide dimensions pair j turns by theta^(-2j/D), so j = i·D/d.
    """
    pairs = torch.arange(small.head_dim // 2) * (wide.head_dim // small.head_dim)
    within = torch.cat((pairs, pairs + wide.head_dim // 2))
    return AxisMap(count * wide.head_dim, (heads[:, None] * wide.head_dim + within).flatten())
