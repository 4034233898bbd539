"""The handwritten digits that scikit-learn ships, split into scans to train on and scans to test on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch
from attrs import frozen
from torch import Tensor

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["NUM_TRAINED", "Scans", "load_scans"]

NUM_TRAINED = 1437
"""Scans before this one are trained on; those from it on, of other writers, are held out."""


class _Digits(Protocol):
    images: NDArray[numpy.float64]
    target: NDArray[numpy.int64]


@frozen(eq=False)
class Scans:
    """Scans by digit: ``images_NYX [N, 8, 8]`` float32, ink 0 to 1; ``rows_DN`` their indices by digit, cyclic.

    ``counts_D [10]`` says how many of each row of ``rows_DN`` are different ones.
    """

    images: Tensor
    rows: Tensor
    counts: Tensor

    def draw(self, digits_BK: Tensor, generator: torch.Generator) -> Tensor:
        """A random scan of each digit: fresh ``[B, K, 8, 8]`` for ``digits_BK [B, K]`` int64."""
        share_BK = torch.rand(digits_BK.shape, generator=generator, device=digits_BK.device)
        columns_BK = (share_BK * self.counts[digits_BK]).long()
        return self.images[self.rows[digits_BK, columns_BK]]


def load_scans(device: torch.device) -> tuple[Scans, Scans]:
    """Scans to train on, and scans that are held out; see `NUM_TRAINED`.

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998.
    """
    # scikit-learn comes without annotations.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - see above

    found = cast("_Digits", load_digits())
    images = torch.tensor(found.images, dtype=torch.float32) / 16.0
    labels = torch.tensor(found.target, dtype=torch.int64)
    return _part(images, labels, slice(0, NUM_TRAINED), device), _part(images, labels, slice(NUM_TRAINED, None), device)


def _part(images: Tensor, labels: Tensor, part: slice, device: torch.device) -> Scans:

    images, labels = images[part], labels[part]
    rows = [(labels == digit).nonzero().flatten() for digit in range(10)]
    longest = max(len(row) for row in rows)
    table = torch.stack([row[torch.arange(longest) % len(row)] for row in rows])
    counts = torch.tensor([len(row) for row in rows])
    return Scans(images.to(device), table.to(device), counts.to(device))
