"""FR-Spec: EAGLE-1 on the target's head cut to hot tokens loses little, and nothing of the output."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.checkpoint import Checkpoint, load_hot_tokens
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.choosing import ProposalMode
from outrider.interfaces import BoundDraft, Drafter, DrafterBuilder, DrafterParts, LoadOptions, ModelPair, Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import (
    AttentionSpec,
    DecodeState,
    DraftOverrides,
    Proposal,
    Request,
    SamplingParams,
    WeightSource,
)
from outrider.verification import RejectionVerifier
from outrider_adapters.eagle import EagleLoader
from outrider_adapters.standalone import StandaloneDraft
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.cases_data import greedy_cases
from tests.sampling.toys import chi_square_p
from tests.support.drafters import WrappedDrafter
from tests.support.engines import Outcome, engine_of, run
from tests.support.pair import trained_pair
from tests.support.reference import next_logits
from tests.support.toy_target import ToySizes, toy_target

OPTIONS = LoadOptions(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def hot_draft(tiny_pair: ModelPair) -> BoundDraft:
    hot = load_hot_tokens(tiny_pair.drafts[1] / "hot_tokens.json")
    options = evolve(OPTIONS, overrides=DraftOverrides(hot_tokens=hot))
    return EagleLoader().load(Checkpoint(tiny_pair.drafts[1]), options).bind(trained_pair().target)


def mean_length(outcomes: list[Outcome]) -> float:
    lengths = [length for outcome in outcomes for length in outcome.accept_lengths]
    return sum(lengths) / len(lengths)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
def test_on_the_trained_pair_it_is_lossless_and_nearly_as_good_as_the_whole_head(
    hot_draft: BoundDraft, params: SamplingParams
) -> None:
    pair = trained_pair()
    assert (hot_draft.spec.head, hot_draft.spec.vocab.size) == (WeightSource.TARGET_SLICED, 1536)
    requests = [Request(case.prompt, 48, evolve(params, seed=seed)) for seed, case in enumerate(greedy_cases())]
    plain = run(engine_of(pair.target), requests)
    found = run(engine_of(pair.target, ChainBuilder(hot_draft, 4)), requests)
    assert [outcome.token_ids for outcome in found] == [outcome.token_ids for outcome in plain]
    whole = run(engine_of(pair.target, ChainBuilder(pair.eagle1, 4)), requests)
    assert mean_length(found) > 0.85 * mean_length(whole)
    assert mean_length(found) > 1.5


def test_trees_over_the_hot_tokens_are_lossless(hot_draft: BoundDraft) -> None:
    target = trained_pair().target
    cases = greedy_cases()[:4]
    for builder in (TreeBuilder(hot_draft, 3, 4, 12), StaticTreeBuilder(hot_draft, (0, 0, 0, 1, 1, 2, 4))):
        found = run(
            engine_of(target, builder, EngineOptions(page_size=5)), [Request(case.prompt, 40) for case in cases]
        )
        assert [tuple(outcome.token_ids) for outcome in found] == [case.token_ids[:40] for case in cases]
        assert mean_length(found) > 2.0


# -- rejection sampling: the output's distribution is the target's, though q knows half of the vocabulary only -----------

SMALL = ToySizes(vocab=12, hidden=8, head_dim=4)
HOT = (7, 2, 9, 2, 4, 0)
PROMPT = (3, 8, 5)
NUM_SAMPLES = 3000


@frozen(eq=False)
class UnscatteredBuilder:
    """A fault: q stays on the draft's own ids, the first of the vocabulary, as if they were the target's."""

    inner: ChainBuilder

    @property
    def slack(self) -> int:
        return self.inner.slack

    @property
    def needs_tree(self) -> bool:
        return False

    @property
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype]:
        return self.inner.kv_layers

    def build(self, parts: DrafterParts) -> Drafter:
        return _Unscattered(self.inner.build(parts), self.inner.draft)


class _Unscattered(WrappedDrafter):
    def __init__(self, inner: Drafter, draft: BoundDraft) -> None:
        super().__init__(inner)
        self._vocab = draft.spec.vocab

    def propose(self, state: DecodeState) -> Proposal:
        proposal = super().propose(state)
        assert proposal.distribution is not None
        assert self._vocab.target_ids is not None
        probs = proposal.distribution.probs
        wrong = torch.zeros_like(probs)
        wrong[..., : self._vocab.size] = probs.index_select(-1, self._vocab.target_ids)
        return evolve(proposal, distribution=evolve(proposal.distribution, probs=wrong))


def pair_probabilities(target: Target) -> Tensor:
    """The probability ``[V, V]`` of the second and the third token after `PROMPT`, whatever the first."""
    total = torch.zeros(SMALL.vocab, SMALL.vocab)
    first = next_logits(target, PROMPT).softmax(dim=-1)
    for one, chance in enumerate(first):
        second = next_logits(target, (*PROMPT, one)).softmax(dim=-1)
        for two in range(SMALL.vocab):
            total[two] += chance * second[two] * next_logits(target, (*PROMPT, one, two)).softmax(dim=-1)
    return total


def p_value(builder: DrafterBuilder, target: Target) -> float:
    """Of the second and third tokens of many requests; the first comes from prefill, where nothing is drafted."""
    engine = build_engine(
        target,
        builder,
        attention=SdpaBackend(),
        runner=EagerRunner(),
        verifier=RejectionVerifier(),
        options=EngineOptions(max_batch_size=250, max_length=16),
    )
    params = SamplingParams(temperature=1.0)
    outcomes = run(engine, [Request(PROMPT, 3, evolve(params, seed=seed)) for seed in range(NUM_SAMPLES)])
    assert any(max(outcome.accept_lengths) > 1 for outcome in outcomes)
    pairs = torch.tensor([outcome.token_ids[1:] for outcome in outcomes])
    counts = torch.bincount(pairs[:, 0] * SMALL.vocab + pairs[:, 1], minlength=SMALL.vocab**2)
    return chi_square_p(counts, pair_probabilities(target) * NUM_SAMPLES)


def test_rejection_with_a_draft_of_hot_tokens_keeps_the_targets_distribution() -> None:
    """At this size a q that is not scattered to the target's ids is found beyond doubt."""
    target = toy_target(SMALL, seed=4)
    draft = StandaloneDraft(toy_target(SMALL, seed=5), HOT).bind(target)
    builder = ChainBuilder(draft, 2, ProposalMode.SAMPLED)
    assert p_value(builder, target) > 0.01
    assert p_value(UnscatteredBuilder(builder), target) < 1e-6
