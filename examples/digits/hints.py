"""A second task for the vision tower while it is trained: which digit stands at a patch, and which one in the row it is.

Only the weights of the tower are kept. Without it, the tower learns from words alone, and much more slowly.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from examples.digits.dialogue import MAX_DIGITS
from examples.digits.layout import Layout
from examples.digits.model import VISION_HIDDEN
from examples.digits.settings import IMAGE_TOKENS, PATCH, SIDE

__all__ = ["Hints"]

_NOTHING = 10
_NOTHING_WEIGHT = 0.1
_PLACE_WEIGHT = 0.5


class Hints(nn.Module):
    """A linear layer on each patch that says the digit whose centre lies there, and its place in the row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(VISION_HIDDEN)
        self.digit = nn.Linear(VISION_HIDDEN, _NOTHING + 1)
        self.place = nn.Linear(VISION_HIDDEN, MAX_DIGITS)
        weight = torch.ones(_NOTHING + 1)
        weight[_NOTHING] = _NOTHING_WEIGHT
        self.register_buffer("weight", weight)
        self.weight: Tensor

    def forward(self, patches_NPD: Tensor, digits_NK: Tensor, layout: Layout) -> Tensor:
        """The loss, a scalar."""
        there_NK, at_NK = layout.there, centre_patches(layout)
        normed: Tensor = self.norm(patches_NPD)
        # One patch past the end takes what is not there.
        right_NP = torch.full((len(at_NK), IMAGE_TOKENS + 1), _NOTHING, device=at_NK.device)
        right_NP.scatter_(1, torch.where(there_NK, at_NK, IMAGE_TOKENS), digits_NK)
        digit_NPC: Tensor = self.digit(normed).float()
        digit_loss = functional.cross_entropy(digit_NPC.flatten(0, 1), right_NP[:, :-1].flatten(), self.weight)
        centres_NKD = normed.gather(1, at_NK[..., None].expand(-1, -1, VISION_HIDDEN))
        place_NKC: Tensor = self.place(centres_NKD).float()
        places = torch.arange(at_NK.shape[1], device=at_NK.device).expand_as(at_NK)
        each_NK = functional.cross_entropy(place_NKC.flatten(0, 1), places.flatten(), reduction="none").view_as(at_NK)
        place_loss = (each_NK * there_NK).sum() / there_NK.sum().clamp(min=1)
        return digit_loss + _PLACE_WEIGHT * place_loss

    def accuracy(self, patches_NPD: Tensor, digits_NK: Tensor, layout: Layout) -> Tensor:
        """The part of the digits that is right, given where they stand; a scalar."""
        at_NK = centre_patches(layout)
        logits_NPC: Tensor = self.digit(self.norm(patches_NPD))[..., :_NOTHING]
        said_NK = logits_NPC.argmax(dim=-1).gather(1, at_NK)
        return ((said_NK == digits_NK) & layout.there).sum() / layout.there.sum()


def centre_patches(layout: Layout) -> Tensor:
    """The patch in which each digit's centre lies: ``[N, K]`` int64."""
    across = SIDE // PATCH
    column_NK = (layout.x * across).long().clamp(0, across - 1)
    row_NK = (layout.y * across).long().clamp(0, across - 1)
    return row_NK * across + column_NK
