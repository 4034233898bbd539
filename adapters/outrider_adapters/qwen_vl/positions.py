"""`multi_axis_positions`: time, height and width of every token of a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_adapters.media import Grid, Placement, PromptPositions

__all__ = ["multi_axis_positions"]


def multi_axis_positions(placement: Placement, tokens_per_second: float = 1.0) -> PromptPositions:
    """``[3, P]``: text counts on all axes alike; in a medium rows and columns count from where it stands, and so does time.

    An image stands at one time. The frames of a video are ``Grid.seconds · tokens_per_second`` apart, rounded down when added
    up. What follows a medium goes on after its longer side, however long it lasts, and so the sequence goes on from fewer
    positions than tokens: the offset is 0 or less.

    Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.2 (rotary position embedding aligned to absolute time),
    as ``get_rope_index`` and ``generate`` of transformers 5 count; its earlier versions let text go on after the last time.
    """
    parts: list[Tensor] = []
    taken, position = 0, 0
    for span in placement.spans:
        parts.append(_text(position, span.start - taken))
        position += span.start - taken
        parts.append(position + _cells(span.grid, tokens_per_second))
        position += max(span.grid.height, span.grid.width)
        taken = span.end
    length = len(placement.token_ids)
    parts.append(_text(position, length - taken))
    return PromptPositions(torch.cat(parts, dim=1), position - taken)


def _cells(grid: Grid, tokens_per_second: float) -> Tensor:
    # In float32, as transformers multiplies: another rounding could be another whole number.
    step = tokens_per_second * torch.tensor(grid.seconds, dtype=torch.float32)
    times = (torch.arange(grid.frames) * step).long()
    axes = torch.meshgrid(times, torch.arange(grid.height), torch.arange(grid.width), indexing="ij")
    return torch.stack(axes).flatten(1)


def _text(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count).expand(3, -1)
