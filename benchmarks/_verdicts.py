"""Which drafters, verifiers and ways of proposing go together, and what a set of runs says about acceptance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from benchmarks._pair import Pair
from outrider.drafting.choosing import ProposalMode
from outrider.interfaces import DrafterBuilder, Verifier
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier, TypicalVerifier

__all__ = ["DRAFTERS", "VERIFIERS", "DraftKind", "Recipe", "ratio_and_error", "recipes"]


@frozen(eq=False)
class DraftKind:
    """A way of drafting. ``prunes``: which drafted tokens are kept depends on their scores."""

    name: str
    is_chain: bool
    prunes: bool
    builder: Callable[[Pair, ProposalMode], DrafterBuilder]


DRAFTERS = (
    DraftKind("eagle3 chain 5", True, False, lambda pair, mode: pair.chain(5, mode)),
    DraftKind("eagle3 tree 4x5x15", False, True, lambda pair, mode: pair.tree(4, 5, 15, mode)),
    DraftKind("eagle3 static tree 10", False, False, lambda pair, mode: pair.static_tree(mode)),
    DraftKind("eagle1 chain 4", True, False, lambda pair, mode: pair.eagle1_chain(4, mode)),
)

VERIFIERS: Mapping[str, Callable[[], Verifier]] = {
    "exact": ExactVerifier,
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
    "typical": TypicalVerifier,
}


@frozen(eq=False)
class Recipe:
    """One drafter, one verifier (a key of `VERIFIERS`) and one way of proposing."""

    drafter: DraftKind
    verifier: str
    mode: ProposalMode

    @property
    def left_out(self) -> str:
        """Why this is not measured; empty where it is."""
        if self.verifier == "block" and not self.drafter.is_chain:
            return "block verification is defined for chains"
        if self.mode is ProposalMode.SAMPLED and self.drafter.prunes:
            return "a tree that is pruned by score cannot be sampled"
        return ""


def recipes() -> tuple[Recipe, ...]:
    """Every combination, the impossible ones included."""
    return tuple(
        Recipe(drafter, verifier, mode) for drafter in DRAFTERS for verifier in VERIFIERS for mode in ProposalMode
    )


def ratio_and_error(runs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Tokens per round over ``runs`` of (tokens, rounds), and its standard error; 0 for a single run.

    The runs are taken as independent. The error is that of a ratio of sums, linearised: rounds of one run hang together,
    so they are not counted as independent observations.
    """
    tokens = sum(run[0] for run in runs)
    rounds = sum(run[1] for run in runs)
    ratio = tokens / rounds
    count = len(runs)
    if count < 2:
        return ratio, 0.0
    squares = sum((run[0] - ratio * run[1]) ** 2 for run in runs)
    return ratio, math.sqrt(squares * count / (count - 1)) / rounds
