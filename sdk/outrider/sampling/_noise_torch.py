"""The noise by torch's operators, on any device; `_noise_triton` computes the same in one kernel.

The hash works on 32-bit words held in int64. Every multiplier is below 2**31, so no product reaches 2**63 and nothing
depends on how signed overflow behaves.

Shape suffixes: R rows, V vocabulary ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor

__all__ = ["DTYPES", "NoiseKey", "NoiseKind", "draw"]

NoiseKind = Literal["bits", "uniform", "exponential", "gumbel"]

DTYPES: Mapping[NoiseKind, torch.dtype] = {
    "bits": torch.int64,
    "uniform": torch.float64,
    "exponential": torch.float32,
    "gumbel": torch.float32,
}

_MASK = 0xFFFFFFFF
_LANES = (0x243F6A88, 0x85A308D3)
_ROUND = 0x9E3779B9
_ID_STEP = 0x5BD1E995
_BLOCK = 1 << 22
"""Elements hashed at once: bounds the int64 temporaries, whatever the number of rows."""


@frozen(eq=False)
class NoiseKey:
    """What noise is a function of, but for the id: ``seeds [R]`` and ``positions [R]`` int64, and a 32-bit word for all."""

    seeds: Tensor
    positions: Tensor
    word: int


def draw(kind: NoiseKind, key: NoiseKey, width: int, ids: Tensor | None) -> Tensor:
    """Fresh noise ``[R, V]`` of the kind's dtype for ``ids [V]`` int64, 0..V-1 without; device only, capture-safe."""
    device = key.seeds.device
    if ids is None:
        ids = torch.arange(width, device=device)
    first, second = _row_keys(key).unbind()
    # A multiplier of its own for every row, so that rows whose first keys are close don't hold permuted noise.
    factors = (second >> 1).bitwise_or_(1)[:, None]
    hashed_ids = _mix_((ids * _ID_STEP).bitwise_and_(_MASK))
    rows = first.shape[0]
    noise = torch.empty(rows, width, dtype=DTYPES[kind], device=device)
    step = max(1, _BLOCK // max(rows, 1))
    for start in range(0, width, step):
        bits = hashed_ids[start : start + step] ^ first[:, None]
        bits = _mix_(bits.mul_(factors).bitwise_and_(_MASK))
        _write(kind, bits, noise if step >= width else noise[:, start : start + step])
    return noise


def _row_keys(key: NoiseKey) -> Tensor:
    """Two 32-bit keys ``[2, R]`` of each row: the words of its counter, absorbed one after the other."""
    low = key.seeds & _MASK
    keys = torch.stack([low ^ lane for lane in _LANES])
    for word in ((key.seeds >> 32).bitwise_and_(_MASK), key.positions & _MASK, key.word):
        keys = _absorbed_(keys).bitwise_xor_(word)
    return _absorbed_(keys)


def _absorbed_(keys: Tensor) -> Tensor:
    return _mix_(keys.add_(_ROUND).bitwise_and_(_MASK))


def _mix_(bits: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche, in place.

    Source: the hash-prospector project's two-round function (16 21f0aaad 15 735a2d97 15).
    """
    bits.bitwise_xor_(bits >> 16)
    bits.mul_(0x21F0AAAD).bitwise_and_(_MASK)
    bits.bitwise_xor_(bits >> 15)
    bits.mul_(0x735A2D97).bitwise_and_(_MASK)
    return bits.bitwise_xor_(bits >> 15)


def _write(kind: NoiseKind, bits: Tensor, noise: Tensor) -> None:
    """Fill ``noise`` with what ``kind`` makes of ``bits``, which are used up."""
    if kind == "bits":
        noise.copy_(bits)
        return
    # (bits + 1/2) / 2**32 is exact in double, and never 0 or 1.
    uniform = bits.to(torch.float64).add_(0.5)
    if kind == "uniform":
        torch.mul(uniform, 2.0**-32, out=noise)
        return
    block = uniform.mul_(2.0**-32).log_()
    if kind == "gumbel":
        block.neg_().log_()
    torch.mul(block, -1.0, out=noise)  # torch.neg writes no other dtype
