"""The verifiers that can be asked for by name (entry points ``outrider.verifiers``)."""

from __future__ import annotations

from outrider.interfaces import LosslessChoice, LossyChoice
from outrider.verification.block import BlockVerifier
from outrider.verification.exact import ExactVerifier
from outrider.verification.rejection import RejectionVerifier
from outrider.verification.typical import TypicalVerifier

__all__ = ["block", "exact", "rejection", "typical"]


def exact() -> LosslessChoice:
    """`ExactVerifier`: the tokens of plain decoding with the same seed."""
    return LosslessChoice(ExactVerifier())


def rejection() -> LosslessChoice:
    """`RejectionVerifier`: the distribution of plain decoding."""
    return LosslessChoice(RejectionVerifier(), proposal="sampled")


def block() -> LosslessChoice:
    """`BlockVerifier`: the distribution of plain decoding, for chains."""
    return LosslessChoice(BlockVerifier(), proposal="sampled")


def typical() -> LossyChoice:
    """`TypicalVerifier` with its usual parameters: longer rounds, another distribution."""
    return LossyChoice(TypicalVerifier(), exact_when_greedy=True)
