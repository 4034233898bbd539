"""`TargetLoader`, `DraftLoader` and `ModelPair`: what the entry points give."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Protocol

import torch
from attrs import field, frozen

from outrider.checkpoint import Checkpoint
from outrider.interfaces.draft import UnboundDraft
from outrider.interfaces.target import Target
from outrider.types import DraftOverrides

__all__ = ["AskedByName", "DraftLoader", "LoadOptions", "LoadProgress", "ModelPair", "TargetLoader"]


class LoadProgress(Protocol):
    """Told about loading as it goes."""

    @abstractmethod
    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` tensors are in place."""
        ...


@frozen
class LoadOptions:
    """Where and as what weights are loaded. ``dtype`` ``None`` keeps the checkpoint's.

    ``overrides`` concern drafts only.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    progress: LoadProgress | None = None
    overrides: DraftOverrides = field(factory=DraftOverrides)


class AskedByName(str):
    """A loader's refusal of a checkpoint that it can load and never takes of itself: naming the loader sets it aside."""

    __slots__ = ()


class TargetLoader(Protocol):
    """Loads target models of one family."""

    @abstractmethod
    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` when the checkpoint is of this family, else why it is not, in a clause."""
        ...

    @abstractmethod
    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Target:
        """The loaded model.

        Raises:
            CheckpointError: of the family, but faulty; all faults at once.
        """
        ...

    @abstractmethod
    def describe(self, checkpoint: Checkpoint) -> Description:
        """What the checkpoint is and what is wrong with it, without loading its weights."""
        ...


class DraftLoader(Protocol):
    """Loads drafts of one kind."""

    @abstractmethod
    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` when the checkpoint is of this kind, else why it is not, in a clause.

        `AskedByName` when it can be loaded, but only by a user who names this loader.
        """
        ...

    @abstractmethod
    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> UnboundDraft:
        """The loaded, unbound draft.

        Raises:
            CheckpointError: of the kind, but faulty; all faults at once.
        """
        ...

    @abstractmethod
    def describe(self, checkpoint: Checkpoint) -> Description:
        """What the checkpoint is and what is wrong with it, without loading its weights."""
        ...


@frozen
class Description:
    """An explained checkpoint, for ``outrider inspect``; ``problems`` forbid its use."""

    kind: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@frozen
class ModelPair:
    """A target directory and drafts trained for it; ``drafts[0]`` is the default."""

    target: Path
    drafts: tuple[Path, ...]
