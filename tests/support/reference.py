"""What a target alone generates, computed the slow way: no cache, no batch, no pages, the whole sequence every time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from outrider.interfaces import Target
from outrider.types import AttentionSpec, StackInputs

__all__ = ["causal_attention", "greedy", "next_logits"]


def causal_attention(layers: Sequence[AttentionSpec], layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over the rows themselves, written out."""
    spec = layers[layer]
    groups = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
    later = torch.ones(q.shape[0], q.shape[0], dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, float("-inf")).softmax(dim=-1), v)


def next_logits(target: Target, token_ids: Sequence[int]) -> Tensor:
    """Logits ``[V]`` of the token after ``token_ids``."""
    stack = target.stack
    inputs = StackInputs(torch.arange(len(token_ids)), partial(causal_attention, stack.spec.layers))
    hidden = stack.run_layers(stack.embed(torch.tensor(list(token_ids))), inputs).hidden
    return stack.logits(hidden[-1:])[0]


def greedy(target: Target, prompt: Sequence[int], count: int, eos_ids: Collection[int] = ()) -> tuple[int, ...]:
    """The target's own greedy continuation: ``count`` tokens, or fewer where an id of ``eos_ids`` or the context ends it."""
    tokens = list(prompt)
    room = target.stack.spec.max_positions - len(prompt)
    for _ in range(min(count, room)):
        tokens.append(int(next_logits(target, tokens).argmax()))
        if tokens[-1] in eos_ids:
            break
    return tuple(tokens[len(prompt) :])
