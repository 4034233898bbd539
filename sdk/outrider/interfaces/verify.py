"""`LosslessVerifier` and `LossyVerifier`: which drafted tokens are accepted. They are distinct types."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, Protocol

from torch import Tensor

from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState

__all__ = ["LosslessVerifier", "LossyVerifier", "Verifier"]


class Verifier(Protocol):
    """Decides which path of a proposal is accepted."""

    @abstractmethod
    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted path, given the target's ``logits [B, N + 1, V]`` at the root and every drafted node.

        Device only, no synchronisation, safe in a capture. ``logits`` are left unchanged.
        """
        ...


class LosslessVerifier(Verifier, Protocol):
    """A verifier whose output is the target's own: the same tokens, or tokens of the same distribution."""

    @property
    @abstractmethod
    def guarantee(self) -> Literal["same tokens", "same distribution"]:
        """What is kept of plain decoding."""
        ...


class LossyVerifier(Verifier, Protocol):
    """A verifier that trades fidelity for acceptance, and says so by its type."""

    @property
    @abstractmethod
    def loss(self) -> str:
        """What may differ from plain decoding, in a sentence."""
        ...
