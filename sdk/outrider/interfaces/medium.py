"""`GraphMedium`: how work is captured and replayed, whatever the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Break", "Captured", "GraphMedium", "Work"]


class Break(Protocol):
    """Given to work that is captured, to be called where something cannot be."""

    @abstractmethod
    def __call__(self, eager: Callable[[], None]) -> None:
        """End the segment; ``eager`` is called here at every replay, and may or may not be in the capture itself."""
        ...


class Work(Protocol):
    """What is captured: operators on storage that stays where it is."""

    @abstractmethod
    def __call__(self, break_: Break) -> Mapping[str, Tensor]:
        """Do the work once; the tensors that a replay computes anew, by name."""
        ...


class Captured(Protocol):
    """Captured work: one graph, or several with eager pieces between them. Keeps alive what the work refers to."""

    @property
    @abstractmethod
    def outputs(self) -> Mapping[str, Tensor]:
        """The tensors that every `replay` writes; memory that other graphs of the medium may overwrite."""
        ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory that capturing it took."""
        ...

    @abstractmethod
    def replay(self) -> None:
        """Do the work again on what the storage holds now, with no Python of it but the eager pieces."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Free it. May be called twice."""
        ...


class GraphMedium(Protocol):
    """Captures work into graphs that share one pool of memory, and so must not be replayed at the same time."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in reports."""
        ...

    @abstractmethod
    def refuses(self, device: torch.device) -> str | None:
        """Why work on ``device`` cannot be captured, in a clause; ``None`` where it can."""
        ...

    @abstractmethod
    def capture(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        what: str,
        warm: bool = True,
        vary: Callable[[], None] | None = None,
    ) -> Captured:
        """Capture ``work``, which reads ``inputs`` (named in errors) and storage of its own.

        ``warm``: run it once for real before; else the caller did, and the capture leaves every tensor that was there
        before as it is. ``vary`` changes the contents of ``inputs``: what is captured must not depend on them.
        May synchronise.

        Raises:
            CaptureError: ``work`` cannot be captured; every line that prevents it is named where the medium knows it.
            OutOfMemoryError: the device has no memory left for it.
        """
        ...
