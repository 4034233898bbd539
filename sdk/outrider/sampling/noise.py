"""Counter-based noise: a pure function of (seed, position, vocabulary id), the same on every device and in any batch.

Shape suffixes: R rows, V vocabulary ids.

The hash works on 32-bit words held in int64. Every multiplier is below 2**31, so no product reaches 2**63 and nothing
depends on how signed overflow behaves. Words become doubles exactly; the logarithms are taken in double and rounded to
float32 at the end, so a last-bit difference between two devices' ``log`` survives the rounding about once in 2**29.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["NoiseStream", "exponential_noise", "gumbel_noise", "noise_bits", "uniform_noise"]

_MASK = 0xFFFFFFFF
_LANES = (0x243F6A88, 0x85A308D3)
_ROUND = 0x9E3779B9
_ID_STEP = 0x5BD1E995
_BLOCK = 1 << 22
"""Elements hashed at once: bounds the int64 temporaries, whatever the number of rows."""


class NoiseStream(IntEnum):
    """Independent noises of one seed. Draws of different streams have nothing to do with each other.

    ``TARGET`` is keyed by the absolute index of the token that is chosen. The other three serve verification that is
    lossless in distribution and are keyed by the index of the round's *root*: a round must not see the noise of an
    earlier one, since what block verification keeps depends on draws for positions it then throws away.
    """

    TARGET = 0
    """Plain sampling, exact verification and coupled drafting."""
    DRAFT = 1
    """Drafts that are sampled for rejection or block verification."""
    ACCEPT = 2
    """Accept tests."""
    RESIDUAL = 3
    """The token after the last accepted one, in rejection and block verification."""


def exponential_noise(
    seeds: Tensor,
    positions: Tensor,
    vocab_size: int,
    *,
    stream: NoiseStream = NoiseStream.TARGET,
    step: int = 0,
    target_ids: Tensor | None = None,
) -> Tensor:
    """Exp(1) noise ``[R, V]`` float32, strictly positive and finite, for ``seeds [R]`` and ``positions [R]`` int64.

    ``target_ids [V]`` int64 names the vocabulary ids of the columns (a reduced draft vocabulary); without it they are
    0..V-1. ``step`` tells draws of one position apart. Allocates its result; device only, capture-safe.
    """
    return _noise(seeds, positions, vocab_size, stream, step, target_ids, gumbel=False)


def gumbel_noise(
    seeds: Tensor,
    positions: Tensor,
    vocab_size: int,
    *,
    stream: NoiseStream = NoiseStream.TARGET,
    step: int = 0,
    target_ids: Tensor | None = None,
) -> Tensor:
    """``-log`` of `exponential_noise`, ``[R, V]`` float32: argmax(log p + g) is argmax(p / e), a draw from p."""
    return _noise(seeds, positions, vocab_size, stream, step, target_ids, gumbel=True)


def uniform_noise(seeds: Tensor, positions: Tensor, stream: NoiseStream, count: int = 1, *, step: int = 0) -> Tensor:
    """``count`` uniforms for each row, ``[R, count]`` float64 in the open interval (0, 1); device only, capture-safe."""
    ids = torch.arange(count, device=seeds.device)
    return _uniform(noise_bits(seeds, positions, ids, stream=stream, step=step))


def noise_bits(
    seeds: Tensor, positions: Tensor, ids: Tensor, *, stream: NoiseStream = NoiseStream.TARGET, step: int = 0
) -> Tensor:
    """32 random bits ``[R, V]`` int64 in [0, 2**32) for ``seeds [R]``, ``positions [R]`` and ``ids [V]``, all int64."""
    first, second = (_row_key(lane, seeds, positions, stream, step) for lane in _LANES)
    return _hash_ids(first, second, _mix_(ids * _ID_STEP & _MASK))


def _noise(
    seeds: Tensor,
    positions: Tensor,
    vocab_size: int,
    stream: NoiseStream,
    step: int,
    target_ids: Tensor | None,
    *,
    gumbel: bool,
) -> Tensor:
    ids = torch.arange(vocab_size, device=seeds.device) if target_ids is None else target_ids
    first, second = (_row_key(lane, seeds, positions, stream, step) for lane in _LANES)
    hashed_ids = _mix_(ids * _ID_STEP & _MASK)
    rows = seeds.shape[0]
    noise = torch.empty(rows, vocab_size, dtype=torch.float32, device=seeds.device)
    width = max(1, _BLOCK // max(rows, 1))
    for start in range(0, vocab_size, width):
        block = _uniform(_hash_ids(first, second, hashed_ids[start : start + width])).log_().neg_()
        if gumbel:
            block = block.log_().neg_()
        noise[:, start : start + width] = block
    return noise


def _row_key(lane: int, seeds: Tensor, positions: Tensor, stream: NoiseStream, step: int) -> Tensor:
    """One of the two 32-bit keys of each row: the words of its counter, absorbed one after the other."""
    key = torch.full_like(seeds, lane)
    for word in (seeds & _MASK, (seeds >> 32) & _MASK, positions & _MASK, torch.full_like(seeds, stream + 8 * step)):
        key = _mix_((key ^ word) + _ROUND & _MASK)
    return key


def _hash_ids(first: Tensor, second: Tensor, hashed_ids: Tensor) -> Tensor:
    """The hash proper; the ids come mixed already, since that part is the same for every row."""
    bits = hashed_ids ^ first[:, None]
    # A multiplier of its own for every row, so that rows whose first keys are close don't hold permuted noise.
    bits.mul_((second[:, None] >> 1) | 1).bitwise_and_(_MASK)
    return _mix_(bits)


def _mix_(bits: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche, in place.

    Source: the hash-prospector project's two-round function (16 21f0aaad 15 735a2d97 15).
    """
    bits.bitwise_xor_(bits >> 16)
    bits.mul_(0x21F0AAAD).bitwise_and_(_MASK)
    bits.bitwise_xor_(bits >> 15)
    bits.mul_(0x735A2D97).bitwise_and_(_MASK)
    return bits.bitwise_xor_(bits >> 15)


def _uniform(bits: Tensor) -> Tensor:
    """(bits + 1/2) / 2**32 in float64: exact, and never 0 or 1."""
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-32)
