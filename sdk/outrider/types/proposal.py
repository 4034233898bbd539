"""What a drafter proposes and what verification makes of it."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

__all__ = ["Acceptance", "DraftDistribution", "Proposal", "TreeShape"]


@frozen
class TreeShape:
    """Static sizes of every proposal of a drafter.

    ``num_tokens`` N drafted tokens per request in at most ``depth`` levels; ``is_chain``: node i is the child of
    node i - 1, so an accepted path is a prefix of the proposal and its KV is in place already.
    ``scratch_slots``: KV slots past the verified prefix that drafting itself writes.
    """

    num_tokens: int
    depth: int
    is_chain: bool
    scratch_slots: int = 0

    @classmethod
    def chain(cls, length: int) -> TreeShape:
        """A chain of ``length`` tokens; 0 is plain decoding."""
        return cls(num_tokens=length, depth=length, is_chain=True, scratch_slots=max(length - 1, 0))


@frozen(eq=False)
class DraftDistribution:
    """The distribution drafted tokens were sampled from, for rejection and block verification.

    ``probs``: ``[B, N, V]`` float32 over the *full* target vocabulary, row i the distribution from which node i was
    drawn (siblings share it, before any of them was taken out). ``warped``: whether the request's temperature, top-k,
    top-p, min-p and penalties were applied to it.
    """

    probs: Tensor
    warped: bool


@frozen(eq=False)
class Proposal:
    """A tree of N drafted tokens per request below the root; a chain is a tree of width 1.

    Node 0 is the root (the newest verified token); drafted node i ≥ 1 stands in column i - 1 of ``tokens``.

    - ``tokens``: ``[B, N]`` int64 target ids.
    - ``parents``: ``[B, N]`` int64, node id (0 = root) of each drafted node's parent; a parent precedes its children.
    - ``depths``: ``[B, N + 1]`` int64, 0 for the root.
    - ``ancestors``: ``[B, N + 1, N + 1]`` bool, row i marks the nodes on the path root..i, itself included.
    - ``draft_lens``: ``[B]`` int64, nodes deeper than this are padding (near a context limit, or a request that asked
      for fewer); they are never accepted and their KV is never kept.
    - ``shape``: the static sizes.
    - ``distribution``: ``None`` when the proposal is one-hot (greedy or coupled drafting).
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor
    draft_lens: Tensor
    shape: TreeShape
    distribution: DraftDistribution | None = None


@frozen(eq=False)
class Acceptance:
    """Which path of a proposal the target accepts, with the tokens that are emitted for it.

    K is `TreeShape.depth`.

    - ``path``: ``[B, K + 1]`` int64 node ids, ``path[:, 0]`` = 0 (root), then the accepted nodes; entries past
      ``counts`` are unspecified but valid node ids.
    - ``counts``: ``[B]`` int64, accepted drafted tokens a, bonus not counted; 0 ≤ a ≤ K.
    - ``tokens``: ``[B, K + 1]`` int64; columns 0..a-1 are the accepted drafted tokens, column a is the bonus.
    - ``finite``: ``[B]`` bool, false where the logits that decided were NaN or infinite.
    """

    path: Tensor
    counts: Tensor
    tokens: Tensor
    finite: Tensor
