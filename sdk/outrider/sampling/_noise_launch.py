"""The noise kernel as typed functions. Importing this imports Triton.

Both run on the device alone. They are safe in a capture once they have run outside of one with the same kind, width and
choice of tensors: the first such run compiles the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from outrider._torch import on_device_of
from outrider.sampling import _noise_triton
from outrider.sampling._noise_torch import DTYPES, NoiseKey, NoiseKind

__all__ = ["launch_noise", "launch_sum"]

_KERNEL = cast("Mapping[tuple[int, int], Callable[..., None]]", _noise_triton.noise_kernel)
"""By the sizes of its grid."""

_BLOCK = 512
"""Columns of a program, four a thread: few, since a row or two of a small vocabulary are to occupy the whole card."""


def launch_noise(kind: NoiseKind, key: NoiseKey, width: int, ids: Tensor | None) -> Tensor:
    """Fresh noise ``[R, V]`` as of `_noise_torch.draw`."""
    rows = key.seeds.shape[0]
    out = torch.empty(rows, width, dtype=DTYPES[kind], device=key.seeds.device)
    _launch(kind, out, None, key, ids, None, (1, 1))
    return out


def launch_sum(
    scores: Tensor, key: NoiseKey, ids: Tensor | None, greedy: Tensor | None, *, nodes_per_position: int
) -> Tensor:
    """Fresh ``scores [B, M, V]`` float32 plus Gumbel noise of seeds ``[B]`` and positions ``[B * M / nodes_per_position]``.

    Requests that ``greedy [B]`` bool names get none, and ids at -inf stay there.
    """
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    _launch("gumbel", out, scores.contiguous(), key, ids, greedy, (scores.shape[1], nodes_per_position))
    return out


def _launch(
    kind: NoiseKind,
    out: Tensor,
    scores: Tensor | None,
    key: NoiseKey,
    ids: Tensor | None,
    greedy: Tensor | None,
    nodes: tuple[int, int],
) -> None:
    width = out.shape[-1]
    if out.numel() == 0:
        return
    grid = (out.numel() // width, -(-width // _BLOCK))
    keys = (key.seeds.contiguous(), key.positions.contiguous())
    with on_device_of(out):
        _KERNEL[grid](
            out,
            scores,
            *keys,
            None if ids is None else ids.contiguous(),
            greedy,
            *nodes,
            key.word,
            width,
            kind,
            _BLOCK,
            num_warps=4,
            # As torch's own kernels are compiled; it is the logarithm that has products and sums to fuse.
            enable_fp_fusion=True,
        )
