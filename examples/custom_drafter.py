"""A drafter of your own: copy from a reference text that the answer is likely to repeat (a document, a former answer).

A drafter needs no model. It fills `Drafter` (what it proposes) and `DrafterBuilder` (what it asks of an engine), and the
loop does the rest: whatever it proposes, the output stays the target's own. Run: python examples/custom_drafter.py

Source: Yang et al. 2023, "Inference with Reference: Lossless Acceleration of Large Language Models".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

import outrider
from outrider import registry
from outrider.drafting import ChainLayout, draft_lengths
from outrider.interfaces import Drafter, DrafterBuilder, DrafterParts
from outrider.types import DecodeState, HiddenTap, Proposal, TreeShape, VerifiedRows


class ReferenceDrafter(Drafter):
    """Where the two newest tokens stand in the reference (the last such place), proposes what follows them there."""

    def __init__(self, reference: Sequence[int], length: int, num_rows: int, device: torch.device) -> None:
        self._layout = ChainLayout(length, num_rows, device)
        self._reference_R = torch.tensor([*reference], device=device)
        self._steps_K = torch.arange(1, length + 1, device=device)

    @property
    def shape(self) -> TreeShape:
        return self._layout.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return ()  # it looks at no hidden state of the target

    @property
    def runs_on_host(self) -> bool:
        return False  # operators on tensors alone, so that a round can be one graph

    def extend(self, rows: VerifiedRows) -> None:
        """A drafter that learns from what the target has verified does so here."""

    def propose(self, state: DecodeState) -> Proposal:
        """Runs inside a round: no .item(), no boolean-mask indexing, no shape that depends on data."""
        reference = self._reference_R
        before_B1 = state.tokens.gather(1, (state.lengths[:, None] - 1).clamp(min=0))
        match_BR = (reference[:-1] == before_B1) & (reference[1:] == state.roots[:, None])
        place_B = torch.where(match_BR, torch.arange(1, len(reference), device=reference.device), -1).amax(dim=1)
        copied_BK = place_B[:, None] + self._steps_K
        inside_BK = (copied_BK < len(reference)) & (place_B >= 0)[:, None]
        tokens_BK = reference[copied_BK.clamp(0, len(reference) - 1)]
        lens_B = torch.minimum(inside_BK.sum(dim=1), draft_lengths(state, self.shape))
        return self._layout.proposal(tokens_BK, lens_B)

    def move_row(self, source: int, destination: int) -> None:
        """Nothing is kept per row."""


@frozen
class ReferenceBuilder(DrafterBuilder):
    """What an engine asks before it builds the drafter."""

    reference: tuple[int, ...]
    length: int = 8

    @property
    def slack(self) -> int:
        return self.length + 1  # KV slots of the root and the drafted tokens

    @property
    def needs_tree(self) -> bool:
        return False

    @property
    def kv_layers(self) -> None:
        """No model, no KV."""

    def build(self, parts: DrafterParts) -> Drafter:
        return ReferenceDrafter(self.reference, self.length, parts.num_rows, parts.target.stack.spec.device)


def main() -> None:
    prompt = 'def fibonacci(n):\n    """Return'
    plain = outrider.load(draft=None)
    first = plain.generate(prompt, max_new_tokens=64)
    drafter = ReferenceBuilder(first.prompt_token_ids + first.token_ids)  # the same question again: its former answer
    sdpa = registry.attention("sdpa")
    model = outrider.SpeculativeModel(plain.target, drafter, attention=sdpa, runner=lambda: registry.runner("eager"))
    again = model.generate(prompt, max_new_tokens=64)
    print(again.text)
    print(f"same tokens as without drafting: {again.token_ids == first.token_ids}")
    print(f"tokens per target pass: {again.statistics.mean_acceptance_length:.2f}")


if __name__ == "__main__":
    main()
