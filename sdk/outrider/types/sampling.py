"""How the next token is chosen: per request on the host, per row on the device."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen
from torch import Tensor

__all__ = ["SamplingFeatures", "SamplingParams", "SamplingState"]


def _no_bias() -> Mapping[int, float]:
    return {}


@frozen
class SamplingParams:
    """How one request's tokens are chosen. The default is greedy.

    The terms and the order in which they apply are those of transformers: bias, banned and allowed tokens, penalties,
    minimum length, then temperature, top-k, top-p, min-p. Checked at `Engine.submit`.
    """

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(factory=_no_bias)
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_new_tokens: int = 0
    seed: int = 0
    """0 ≤ seed < 2**63; the same seed gives the same text with any draft, batch, order and runner."""

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0


@frozen
class SamplingFeatures:
    """Which parts of sampling any request of the batch uses: known on the host, so unused parts cost nothing."""

    sampled: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalties: bool = False
    bias: bool = False
    min_tokens: bool = False

    @property
    def active(self) -> bool:
        """Whether anything but the most probable token of the bare logits is ever taken."""
        return self.sampled or self.penalties or self.bias or self.min_tokens

    def __or__(self, other: SamplingFeatures) -> SamplingFeatures:
        return SamplingFeatures(
            sampled=self.sampled or other.sampled,
            top_k=self.top_k or other.top_k,
            top_p=self.top_p or other.top_p,
            min_p=self.min_p or other.min_p,
            penalties=self.penalties or other.penalties,
            bias=self.bias or other.bias,
            min_tokens=self.min_tokens or other.min_tokens,
        )


@frozen(eq=False)
class SamplingState:
    """`SamplingParams` of B rows on the device.

    ``temperature``, ``top_p``, ``min_p``, ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``: ``[B]``
    float32 (``top_p`` better in float64: 1 - top_p then rounds as transformers' does). ``top_k``: ``[B]`` int64, 0 =
    off. ``seeds``: ``[B]`` int64. ``min_totals``: ``[B]`` int64, sequence length (prompt included) below
    which no stop id may be chosen. ``bias``: ``[B, V]`` float32 added to the logits, -inf for banned tokens; ``None``
    while no request of the engine has any.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seeds: Tensor
    min_totals: Tensor
    bias: Tensor | None
    features: SamplingFeatures
