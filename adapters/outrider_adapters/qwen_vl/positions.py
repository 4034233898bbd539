"""`multi_axis_positions`: time, height and width of every token of a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_adapters.media import Placement, PromptPositions

__all__ = ["multi_axis_positions"]


def multi_axis_positions(placement: Placement) -> PromptPositions:
    """``[3, P]``: text counts on all axes alike; an image stands at one time, its rows and columns counting from there.

    What follows an image goes on after its longer side, and so the sequence has fewer positions than tokens: the offset is
    0 or less.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1 (multimodal rotary position embedding).
    """
    parts: list[Tensor] = []
    taken, position = 0, 0
    for span in placement.spans:
        parts.append(_text(position, span.start - taken))
        position += span.start - taken
        rows = torch.arange(span.grid.height).repeat_interleave(span.grid.width)
        columns = torch.arange(span.grid.width).repeat(span.grid.height)
        parts.append(position + torch.stack([torch.zeros_like(rows), rows, columns]))
        position += max(span.grid.height, span.grid.width)
        taken = span.end
    length = len(placement.token_ids)
    parts.append(_text(position, length - taken))
    return PromptPositions(torch.cat(parts, dim=1), position - taken)


def _text(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count).expand(3, -1)
