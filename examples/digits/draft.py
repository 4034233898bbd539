"""The draft: an EAGLE-3 head, unrolled over several steps for all rows at once.

Row i of a sequence joins the target's feature at i with the embedding of token i + 1, and foretells token i + 2. Step j
feeds the row its own output of step j - 1 beside the embedding of token i + 1 + j. It sees what the draft sees when it
drafts from there: rows of true features up to i, then the steps before it at the same row.

Source: EAGLE-3 (Li et al. 2025), section 3.2, training-time test.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from examples.digits.settings import DRAFT_VOCAB_SIZE, HIDDEN, TAPS

__all__ = ["EPS", "HEADS", "HEAD_DIM", "INNER", "KV_HEADS", "THETA", "EagleHead"]

HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 32, 320
THETA, EPS = 10000.0, 1e-5


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(2 * HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(2 * HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        inner: Tensor = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        return functional.linear(inner, self.down_proj.weight)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.hidden_norm = nn.RMSNorm(HIDDEN, EPS)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.self_attn = _Attention()
        self.mlp = _Mlp()


class EagleHead(nn.Module):
    """The head's weights, named as in a checkpoint, and its map ``target_ids [D]`` from draft ids to target ids."""

    def __init__(self, target_ids_D: Tensor) -> None:
        super().__init__()
        self.fc = nn.Linear(len(TAPS) * HIDDEN, HIDDEN, bias=False)
        self.midlayer = _Layer()
        self.norm = nn.RMSNorm(HIDDEN, EPS)
        self.lm_head = nn.Linear(HIDDEN, DRAFT_VOCAB_SIZE, bias=False)
        self.register_buffer("target_ids", target_ids_D, persistent=False)
        self.target_ids: Tensor

    def forward(self, features_BTF: Tensor, embeds_BTH: Tensor, steps: int) -> list[Tensor]:
        """Logits ``[B, T - 1, D]`` of each step, given the true tokens: ``embeds_BTH`` are those of the sequence."""
        return self._unroll(features_BTF, embeds_BTH, steps, None)[0]

    def drafted(self, features_BTF: Tensor, embeds_BTH: Tensor, steps: int, embedding_VH: Tensor) -> Tensor:
        """Target ids ``[B, T - 1, steps]`` of the greedy chain that is drafted from each row; the first follows token i + 1."""
        return torch.stack(self._unroll(features_BTF, embeds_BTH, steps, embedding_VH)[1], dim=-1)

    def _unroll(
        self, features_BTF: Tensor, embeds_BTH: Tensor, steps: int, embedding_VH: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        layer, attention = self.midlayer, self.midlayer.self_attn
        state = self.fc(features_BTF[:, :-1])
        following = embeds_BTH[:, 1:]
        rows = state.shape[1]
        positions = torch.arange(rows, device=state.device)
        earlier_RR = positions[:, None] >= positions
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits: list[Tensor] = []
        chosen: list[Tensor] = []
        for step in range(steps):
            joined = torch.cat((layer.input_layernorm(following), layer.hidden_norm(state)), dim=-1)
            query = rotated(_heads(attention.q_proj(joined), HEADS), positions + step)
            keys.append(_shared(rotated(_heads(attention.k_proj(joined), KV_HEADS), positions + step)))
            values.append(_shared(_heads(attention.v_proj(joined), KV_HEADS)))
            mixed = _attend(query, keys, values, earlier_RR)
            state = state + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            state = state + layer.mlp(layer.post_attention_layernorm(state))
            logits.append(self.lm_head(self.norm(state)))
            chosen.append(self.target_ids[logits[-1].argmax(dim=-1)])
            # What runs past the end is masked by whoever trains on it.
            following = following.roll(-1, dims=1) if embedding_VH is None else embedding_VH[chosen[-1]]
        return logits, chosen


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor], earlier_RR: Tensor) -> Tensor:
    """Attention of each row to the first step's rows up to its own, and to its own of later steps: ``[B, N, R, d]``."""
    scale = HEAD_DIM**-0.5
    first = ((query @ keys[0].transpose(-1, -2)) * scale).masked_fill(~earlier_RR, -torch.inf)
    own = [(query * key).sum(dim=-1, keepdim=True) * scale for key in keys[1:]]
    shares = torch.cat((first, *own), dim=-1).float().softmax(dim=-1).to(query.dtype)
    rows = query.shape[-2]
    mixed = shares[..., :rows] @ values[0]
    for index, value in enumerate(values[1:]):
        mixed = mixed + shares[..., rows + index, None] * value
    return mixed


def _heads(flat: Tensor, heads: int) -> Tensor:
    return flat.view(*flat.shape[:2], heads, HEAD_DIM).transpose(1, 2)


def _shared(kv: Tensor) -> Tensor:
    return kv.repeat_interleave(HEADS // KV_HEADS, dim=1)


def rotated(heads_BNRd: Tensor, positions_R: Tensor) -> Tensor:
    """Rotary positions in Llama's form: halves, base `THETA`."""
    half = HEAD_DIM // 2
    frequency = THETA ** (-torch.arange(half, device=positions_R.device) / half)
    angle_Rh = positions_R[:, None] * frequency
    cos, sin = angle_Rh.cos().to(heads_BNRd.dtype), angle_Rh.sin().to(heads_BNRd.dtype)
    first, second = heads_BNRd[..., :half], heads_BNRd[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
