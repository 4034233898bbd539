"""Exact verification: a drafted token is accepted when it is the very token that plain sampling would take."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from outrider.sampling.choice import choose_tokens
from outrider.types import Acceptance, Proposal
from outrider.types.state import DecodeState
from outrider.verification.walk import follow_choices

__all__ = ["ExactVerifier"]


class ExactVerifier:
    """Accepts the path of the tokens that plain decoding with each row's seed takes, greedy and sampled rows alike.

    With noise e(seed, index, v) known beforehand, the target's token at a node is argmax_v p(v) / e(v). The output is
    token for token that of plain decoding, whatever the draft, the tree or the batch; `Proposal.distribution` is not
    needed. With no drafted token (N = 0) this is plain decoding.

    Source: Gumbel-max trick; the coupling bound (1 - TV) / (1 + TV) of drafts that share the noise is that of
    Daliri, Musco, Suresh 2024 (arXiv 2408.07978).
    """

    @property
    def guarantee(self) -> Literal["same tokens"]:
        """The same seed gives the same tokens as plain decoding."""
        return "same tokens"

    @property
    def chains_only(self) -> bool:
        """It verifies trees as well."""
        return False

    def accept(self, proposal: Proposal, logits: Tensor, state: DecodeState) -> Acceptance:
        """The accepted path for ``logits [B, N + 1, V]``, which are left unchanged."""
        choice = choose_tokens(logits, state, proposal)
        return follow_choices(proposal, choice.tokens, choice.finite)
