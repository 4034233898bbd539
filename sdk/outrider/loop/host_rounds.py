"""Rounds with host code in them (a drafter that runs there, token constraints): never one graph, and told so."""

from __future__ import annotations

import torch

from outrider.drafting import ChainLayout
from outrider.types import DispatchReport, Phase, Proposal, RefusalReason, Refused, RoundShape, TreeShape
from outrider.types.counts import counted

__all__ = ["count_host_round", "idle_proposal"]

_BY = "round"


def count_host_round(report: DispatchReport, shape: RoundShape, constrained: int) -> None:
    """Count and explain that a round of ``shape`` is no graph.

    ``constrained``: how many of its requests have a token constraint; 0 where the drafter is what runs on the host.
    """
    if constrained:
        what, remedy = f"{counted(constrained, 'token constraint')} among them", "rounds without constraints are graphs"
    else:
        what, remedy = "the drafter runs on the host", "only a drafter of operators on tensors alone can be in a graph"
    numbers = f"{shape}; {what}"
    remedy = f"nothing need be done: the passes in it are captured on their own; {remedy}"
    report.count_refusal(Phase.ROUND, Refused(RefusalReason.HOST_CODE, numbers, remedy, _BY))


def idle_proposal(shape: TreeShape, rows: int, device: torch.device) -> Proposal:
    """A proposal of ``shape`` of padding alone, for rows that stand idle: a chain, or every node below the root."""
    nodes = shape.num_tokens
    tokens = torch.zeros(rows, nodes, dtype=torch.int64, device=device)
    draft_lens = torch.zeros(rows, dtype=torch.int64, device=device)
    if shape.is_chain:
        return ChainLayout(nodes, rows, device).proposal(tokens, draft_lens)
    depths = torch.ones(rows, nodes + 1, dtype=torch.int64, device=device)
    depths[:, 0] = 0
    ancestors = torch.eye(nodes + 1, dtype=torch.bool, device=device)
    ancestors[:, 0] = True
    return Proposal(
        tokens=tokens,
        parents=torch.zeros_like(tokens),
        depths=depths,
        ancestors=ancestors.expand(rows, -1, -1),
        draft_lens=draft_lens,
        shape=shape,
    )
