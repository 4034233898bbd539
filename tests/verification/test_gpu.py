"""A captured verification is the eager one, for every verifier, on new contents of the captured buffers."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from outrider.interfaces import Verifier
from outrider.types import DraftDistribution, Proposal
from tests.sampling.toys import on_device
from tests.verification.test_invariants import FORMS, case, name

pytestmark = pytest.mark.gpu


def on_gpu(proposal: Proposal) -> Proposal:
    distribution = proposal.distribution
    return evolve(
        proposal,
        tokens=proposal.tokens.cuda(),
        parents=proposal.parents.cuda(),
        depths=proposal.depths.cuda(),
        ancestors=proposal.ancestors.cuda(),
        draft_lens=proposal.draft_lens.cuda(),
        distribution=None
        if distribution is None
        else DraftDistribution(distribution.probs.cuda(), distribution.warped),
    )


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@pytest.mark.parametrize("sampled", [False, True])
def test_captured_is_eager(verifier: Verifier, form: str, sampled: bool) -> None:
    proposal, logits, state = case(0, form, sampled=sampled)
    proposal, logits, state = on_gpu(proposal), logits.cuda(), on_device(state, "cuda")
    verifier.accept(proposal, logits, state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = verifier.accept(proposal, logits, state)
    later, later_logits, _ = case(1, form, sampled=sampled)
    proposal.tokens.copy_(later.tokens)
    proposal.draft_lens.copy_(later.draft_lens)
    logits.copy_(later_logits)
    state.sampling.seeds.add_(12345)
    graph.replay()
    eager = verifier.accept(proposal, logits, state)
    assert torch.equal(captured.tokens, eager.tokens)
    assert torch.equal(captured.path, eager.path)
    assert torch.equal(captured.counts, eager.counts)
    assert torch.equal(captured.finite, eager.finite)
