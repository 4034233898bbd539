"""`LosslessVerifier` and `LossyVerifier`: which drafted tokens are accepted. They are distinct types."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, Protocol

from attrs import frozen
from torch import Tensor

from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState

__all__ = [
    "LosslessChoice",
    "LosslessVerifier",
    "LossyChoice",
    "LossyVerifier",
    "ProposalKind",
    "Verifier",
    "VerifierChoice",
]

ProposalKind = Literal["greedy", "coupled", "sampled"]
"""How drafted tokens are chosen for requests that sample; see `outrider.drafting.choosing.ProposalMode`."""


class Verifier(Protocol):
    """Decides which path of a proposal is accepted."""

    @property
    @abstractmethod
    def chains_only(self) -> bool:
        """Whether it cannot verify trees; an engine whose drafter makes them is then refused."""
        ...

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


@frozen(eq=False)
class LosslessChoice:
    """A lossless verifier that can be asked for by name, and what suits it.

    ``proposal``: the proposals that it accepts most of.
    """

    verifier: LosslessVerifier
    proposal: ProposalKind = "coupled"

    def gives_same_tokens(self, greedy: bool) -> bool:
        """Whether a request (``greedy``: at temperature 0) gets the very tokens of plain decoding."""
        return greedy or self.verifier.guarantee == "same tokens"


@frozen(eq=False)
class LossyChoice:
    """A lossy verifier that can be asked for by name; otherwise as `LosslessChoice`.

    ``exact_when_greedy``: requests at temperature 0 lose nothing.
    """

    verifier: LossyVerifier
    proposal: ProposalKind = "coupled"
    exact_when_greedy: bool = False

    def gives_same_tokens(self, greedy: bool) -> bool:
        """Whether a request (``greedy``: at temperature 0) gets the very tokens of plain decoding."""
        return greedy and self.exact_when_greedy


VerifierChoice = LosslessChoice | LossyChoice
"""What an entry point of ``outrider.verifiers`` gives."""
