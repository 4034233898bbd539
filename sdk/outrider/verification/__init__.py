"""Verifiers: which drafted tokens are accepted."""

from __future__ import annotations

from outrider.verification.block import BlockVerifier
from outrider.verification.exact import ExactVerifier
from outrider.verification.rejection import RejectionVerifier
from outrider.verification.typical import TypicalVerifier
from outrider.verification.walk import follow_choices

__all__ = [
    "BlockVerifier",
    "ExactVerifier",
    "RejectionVerifier",
    "TypicalVerifier",
    "follow_choices",
]
