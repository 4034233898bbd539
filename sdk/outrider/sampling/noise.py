"""Counter-based noise: a pure function of (seed, position, vocabulary id), the same on every device and in any batch.

On CUDA one kernel computes it where Triton can build kernels, elsewhere torch's operators do: the same words, and values
from the same operations. Words become doubles exactly; the logarithms are taken in double and rounded to float32 at the
end, so a last-bit difference between two devices' ``log`` survives the rounding about once in 2**29.

Shape suffixes: B requests, M nodes, R rows, V vocabulary ids.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from outrider import _triton
from outrider.sampling import _noise_torch
from outrider.sampling._noise_torch import NoiseKey, NoiseKind

__all__ = ["NoiseStream", "add_gumbel", "exponential_noise", "gumbel_noise", "is_fused", "noise_bits", "uniform_noise"]


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


def is_fused(device: torch.device) -> bool:
    """Whether noise on ``device`` comes from one kernel: on CUDA, where Triton can build it."""
    return device.type == "cuda" and _triton.missing() is None


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
    return _draw("exponential", _key(seeds, positions, stream, step), vocab_size, target_ids)


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
    return _draw("gumbel", _key(seeds, positions, stream, step), vocab_size, target_ids)


def add_gumbel(
    scores: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    stream: NoiseStream = NoiseStream.TARGET,
    step: int = 0,
    target_ids: Tensor | None = None,
    greedy: Tensor | None = None,
) -> Tensor:
    """``scores [B, M, V]`` float32 plus `gumbel_noise` of ``seeds [B]`` at ``positions [B, M]`` or ``[B, 1]``.

    With ``positions [B, 1]`` the nodes of a request share their noise. Requests that ``greedy [B]`` bool names get none.
    ``scores`` are left as they are. Allocates its result; device only, capture-safe.
    """
    batch, nodes, width = scores.shape
    places = positions.shape[1]
    if is_fused(scores.device):
        from outrider.sampling._noise_launch import launch_sum

        key = _key(seeds, positions.reshape(-1), stream, step)
        return launch_sum(scores, key, target_ids, greedy, nodes_per_position=nodes // places)
    rows = seeds[:, None].expand(batch, places).reshape(-1)
    key = _key(rows, positions.reshape(-1), stream, step)
    noise = _noise_torch.draw("gumbel", key, width, target_ids).view(batch, places, width)
    if greedy is not None:
        noise.masked_fill_(greedy[:, None, None], 0.0)
    return noise.add_(scores) if places == nodes else scores + noise


def uniform_noise(seeds: Tensor, positions: Tensor, stream: NoiseStream, count: int = 1, *, step: int = 0) -> Tensor:
    """``count`` uniforms for each row, ``[R, count]`` float64 in the open interval (0, 1); device only, capture-safe."""
    return _draw("uniform", _key(seeds, positions, stream, step), count, None)


def noise_bits(
    seeds: Tensor, positions: Tensor, ids: Tensor, *, stream: NoiseStream = NoiseStream.TARGET, step: int = 0
) -> Tensor:
    """32 random bits ``[R, V]`` int64 in [0, 2**32) for ``seeds [R]``, ``positions [R]`` and ``ids [V]``, all int64."""
    return _draw("bits", _key(seeds, positions, stream, step), ids.shape[0], ids)


def _key(seeds: Tensor, positions: Tensor, stream: NoiseStream, step: int) -> NoiseKey:
    return NoiseKey(seeds, positions, stream + 8 * step)


def _draw(kind: NoiseKind, key: NoiseKey, width: int, ids: Tensor | None) -> Tensor:
    if is_fused(key.seeds.device):
        from outrider.sampling._noise_launch import launch_noise

        return launch_noise(kind, key, width, ids)
    return _noise_torch.draw(kind, key, width, ids)
