"""`AdaptiveChainDrafter`: chains whose length is settled anew for every round."""

from __future__ import annotations

from attrs import frozen

from outrider.drafting.builders import ModelDraftBuilder
from outrider.drafting.chain import ChainDrafter
from outrider.drafting.choosing import ProposalMode
from outrider.drafting.length_policy import LengthPolicy
from outrider.drafting.memory import DraftMemory
from outrider.drafting.none import NoDrafter
from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import Drafter, DrafterParts
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["AdaptiveChainBuilder", "AdaptiveChainDrafter"]


class AdaptiveChainDrafter:
    """One chain drafter per length 0..max over one memory; the policy says which proposes next."""

    def __init__(
        self, memory: DraftMemory, policy: LengthPolicy, max_length: int, num_rows: int, mode: ProposalMode
    ) -> None:
        self._memory = memory
        self._policy = policy
        self._chains: tuple[Drafter, ...] = (
            NoDrafter(num_rows, memory.spec.device),
            *(ChainDrafter(memory, length, num_rows, mode) for length in range(1, max_length + 1)),
        )

    @property
    def shape(self) -> TreeShape:
        """Sizes of the next proposal; at first those of the longest."""
        return self._chains[self._policy.length].shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """The taps of the draft's spec."""
        return self._memory.spec.taps

    @property
    def runs_on_host(self) -> bool:
        """No: a length is settled between rounds, and rounds of each are captured on their own."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Run the verified rows through the draft, whatever the length."""
        self._memory.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        """A chain of the length that the policy has settled."""
        return self._chains[self._policy.length].propose(state)

    def move_row(self, source: int, destination: int) -> None:
        """Copy what is kept for a row."""
        self._memory.move_row(source, destination)


@frozen(eq=False)
class AdaptiveChainBuilder(ModelDraftBuilder):
    """Chains of 0 to ``max_length`` tokens from ``draft``. ``costs``: see `LengthPolicy`."""

    max_length: int
    mode: ProposalMode = ProposalMode.COUPLED
    costs: tuple[float, ...] | None = None

    @property
    def slack(self) -> int:
        """Root and drafted tokens."""
        return self.max_length + 1

    @property
    def needs_tree(self) -> bool:
        """A chain is causal."""
        return False

    def build(self, parts: DrafterParts) -> Drafter:
        """A drafter that listens to how its rounds go."""
        limit = self.draft.spec.max_draft_tokens
        with Problems("the chains cannot be drafted", ConfigurationError) as problems:
            if self.max_length < 1:
                problems.add(f"max_length is {self.max_length}, at least 1 is needed")
            if limit is not None and self.max_length > limit:
                problems.add(
                    f"max_length {self.max_length}; draft '{self.draft.spec.name}' was made for at most {limit}"
                )
            if self.costs is not None and len(self.costs) != self.max_length + 1:
                problems.add(f"{len(self.costs)} costs for lengths 0 to {self.max_length}; give {self.max_length + 1}")
            if self.costs is not None and min(self.costs, default=1.0) <= 0:
                problems.add("costs must be above 0")
        policy = LengthPolicy(self.max_length, self.costs)
        parts.feedback.listen(policy.observe)
        memory = DraftMemory.of(parts, self.draft, needs_tree=False)
        return AdaptiveChainDrafter(memory, policy, self.max_length, parts.num_rows, self.mode)
