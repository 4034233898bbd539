"""Where the digits of an image stand: in one line or two, read from left to right."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

__all__ = ["MAX_IN_LINE", "Layout", "random_layout"]

MAX_IN_LINE = 5
_SMALLEST, _LARGEST = 0.17, 0.45
_TWO_LINES = 0.3


@frozen(eq=False)
class Layout:
    """Centres ``x_BK, y_BK`` and heights ``size_BK`` of K digits, in parts of the image's side; ``there_BK`` bool."""

    x: Tensor
    y: Tensor
    size: Tensor
    there: Tensor


def random_layout(counts_B: Tensor, num_slots: int, generator: torch.Generator) -> Layout:
    """A random place for each of ``counts_B`` digits, none over another; device only."""
    device, batch = counts_B.device, len(counts_B)

    def uniform(*shape: int) -> Tensor:
        return torch.rand((batch, *shape), generator=generator, device=device)

    two_B = (counts_B > MAX_IN_LINE) | ((counts_B > 1) & (uniform() < _TWO_LINES))
    low_B = (counts_B - MAX_IN_LINE).clamp(min=1)
    high_B = (counts_B - 1).clamp(max=MAX_IN_LINE)
    split_B = low_B + (uniform() * (high_B - low_B + 1).clamp(min=1)).long()
    first_B = torch.where(two_B, split_B, counts_B)
    in_line_B2 = torch.stack((first_B, counts_B - first_B), dim=1)
    fit_B = torch.minimum(1.0 / in_line_B2.amax(dim=1).clamp(min=1), 1.0 / (1 + two_B.float())).clamp(max=_LARGEST)
    least_B = torch.maximum(fit_B * 0.5, fit_B.clamp(max=_SMALLEST))
    size_B = least_B + (fit_B - least_B) * uniform()

    slot_K = torch.arange(num_slots, device=device)
    line_BK = (slot_K >= first_B[:, None]).long()
    index_BK = slot_K - line_BK * first_B[:, None]
    left_B2M = _places(in_line_B2, size_B[:, None], uniform(2, MAX_IN_LINE + 1))
    rows_BK = torch.arange(batch, device=device)[:, None].expand(-1, num_slots)
    x_BK = left_B2M[rows_BK, line_BK, index_BK.clamp(0, MAX_IN_LINE - 1)]
    top_BM = _places(1 + two_B.long(), size_B, uniform(3))
    y_BK = top_BM.gather(1, line_BK)
    size_BK = size_B[:, None] * (0.85 + 0.15 * uniform(num_slots))
    y_BK = y_BK + (uniform(num_slots) - 0.5) * 0.15 * size_B[:, None]
    return Layout(x_BK, y_BK, size_BK, slot_K < counts_B[:, None])


def _places(counts: Tensor, size: Tensor, weights_M: Tensor) -> Tensor:
    """Centres ``[..., M - 1]`` of ``counts [...]`` boxes of ``size`` in a line of length 1, with random gaps."""
    gaps = weights_M.shape[-1]
    index = torch.arange(gaps, device=counts.device)
    weights = (weights_M + 0.05) * (index <= counts[..., None])
    free = (1.0 - counts * size).clamp(min=0.0)
    before = (weights / weights.sum(dim=-1, keepdim=True)).cumsum(dim=-1) * free[..., None]
    return (before + (index + 0.5) * size[..., None])[..., :-1]
