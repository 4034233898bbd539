"""`UnboundDraft` and `BoundDraft`: a draft model before and after it met its target."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from torch import Tensor

from outrider.interfaces.layer_stack import LayerStackProvider
from outrider.interfaces.target import Target
from outrider.types import DraftOutput, DraftSpec, StackInputs

__all__ = ["BoundDraft", "UnboundDraft"]


class UnboundDraft(Protocol):
    """A loaded draft that has not met a target: it can be described and bound, nothing else."""

    @property
    @abstractmethod
    def spec(self) -> DraftSpec:
        """What the checkpoint says and its tensors confirm."""
        ...

    @abstractmethod
    def bind(self, target: Target) -> BoundDraft:
        """The draft with its final weights: embedding and head of its own, of the target, or sliced from it.

        Weights shared with the target are the target's own storage, never a copy. The same draft may be bound to several
        targets; each result serves its own.

        Raises:
            BindError: widths, vocabulary, taps or rope do not fit; all conflicts at once, both sides named.
        """
        ...


class BoundDraft(Protocol):
    """A draft model with final weights. Only this can be drafted with or captured.

    Whether a row comes from the target or from the draft itself is decided by which method is called, never by
    comparing widths: the concatenated taps may be exactly as wide as the draft's own state.
    """

    @property
    @abstractmethod
    def spec(self) -> DraftSpec:
        """The one source of widths, taps, vocabulary, state and limits."""
        ...

    @property
    @abstractmethod
    def bound_to(self) -> LayerStackProvider:
        """The stack of the target it was bound to, the very object: engines refuse to draft for any other with it."""
        ...

    @abstractmethod
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings ``[T, E]`` of *target* ids ``[T]`` int64; the target's own are those that its ``embed`` gives."""
        ...

    @abstractmethod
    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run verified rows: ``embeds [T, E]`` of tokens i + 1 with target ``features [T, feature_width]`` at i.

        ``features`` is ``None`` exactly when `DraftSpec.taps` is empty. ``inputs.taps`` is always empty.
        """
        ...

    @abstractmethod
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        """Run drafted rows: ``embeds [T, E]`` of drafted tokens with the previous step's ``state [T, width]``."""
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, Dv]`` over the *draft* vocabulary of `DraftOutput.hidden` rows ``[R, H]``.

        With the target's head they are those that the target's ``logits`` gives, scale and soft cap included.
        """
        ...
