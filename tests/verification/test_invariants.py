"""What every verifier owes, whatever it accepts: the path's form, rows of their own, faults told and contained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.errors import ConfigurationError
from outrider.interfaces import Verifier
from outrider.types import Acceptance, DecodeState, DraftDistribution, Proposal, SamplingParams
from outrider.verification import (
    BlockVerifier,
    ExactVerifier,
    RejectionVerifier,
    TypicalVerifier,
)
from tests.sampling.test_warp import PARAMS, STOPS, V
from tests.sampling.toys import chain, decode_state, ints, rows_of, tree
from tests.verification.greedy import GreedyVerifier
from tests.verification.test_exact import PARENTS, check_invariants, emitted

VERIFIERS: list[Verifier] = [
    GreedyVerifier(),
    ExactVerifier(),
    RejectionVerifier(),
    BlockVerifier(),
    TypicalVerifier(),
]
TREE_VERIFIERS = [v for v in VERIFIERS if not isinstance(v, BlockVerifier)]


def case(seed: int, form: str, *, sampled: bool) -> tuple[Proposal, Tensor, DecodeState]:
    """Mixed requests with drafts that the target often likes; draft lengths from 0 on."""
    generator = torch.Generator().manual_seed(seed)
    params = [evolve(p, seed=seed + r) for r, p in enumerate(PARAMS)]
    rows = len(params)
    state = decode_state([[1, 2, 3]] * rows, params, V, prompt_lens=[2] * rows, stop_ids=[STOPS] * rows)
    logits = torch.randn(rows, 8, V, generator=generator) * 2
    tokens = torch.stack([torch.randperm(V, generator=generator)[:7] for _ in range(rows)])
    parents = [[0, 1, 2, 3, 4, 5, 6] if form == "chain" else PARENTS[r % 4] for r in range(rows)]
    for row in range(rows):
        for node, parent in enumerate(parents[row]):
            logits[row, parent, tokens[row, node]] += 3 * float(torch.rand((), generator=generator))
    lens = ints(torch.randint(0, 8, (rows,), generator=generator))
    proposal = chain(tokens, lens) if form == "chain" else tree(tokens, parents, lens)
    if sampled:
        probs = (torch.randn(rows, 7, V, generator=generator) * 2).softmax(-1)
        proposal = evolve(proposal, distribution=DraftDistribution(probs, warped=False))
    return proposal, logits, state


def part(proposal: Proposal, rows: Sequence[int]) -> Proposal:
    index = torch.tensor(list(rows))
    distribution = proposal.distribution
    return evolve(
        proposal,
        tokens=proposal.tokens[index],
        parents=proposal.parents[index],
        depths=proposal.depths[index],
        ancestors=proposal.ancestors[index],
        draft_lens=proposal.draft_lens[index],
        distribution=None
        if distribution is None
        else DraftDistribution(distribution.probs[index], distribution.warped),
    )


def same(left: Acceptance, right: Acceptance, rows: Sequence[int], places: Sequence[int]) -> bool:
    return all(
        emitted(left, a) == emitted(right, b)
        and torch.equal(left.path[a, : int(left.counts[a]) + 1], right.path[b, : int(right.counts[b]) + 1])
        for a, b in zip(rows, places, strict=True)
    )


def name(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


FORMS = [(v, "chain") for v in VERIFIERS] + [(v, "tree") for v in TREE_VERIFIERS]


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), sampled=st.booleans(), order=st.permutations(range(len(PARAMS))))
def test_paths_are_well_formed_and_rows_do_not_depend_on_neighbours_or_order(
    verifier: Verifier, form: str, seed: int, sampled: bool, order: list[int]
) -> None:
    proposal, logits, state = case(seed, form, sampled=sampled)
    untouched = logits.clone()
    whole = verifier.accept(proposal, logits, state)
    check_invariants(whole, proposal)
    assert torch.equal(logits, untouched)
    assert bool(whole.finite.all())
    some = order[:4]
    few = verifier.accept(part(proposal, some), logits[some], rows_of(state, some))
    assert same(whole, few, some, range(4))


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), sampled=st.booleans(), bad=st.integers(0, len(PARAMS) - 1), everywhere=st.booleans())
def test_a_row_of_nan_is_told_and_harms_nobody(
    verifier: Verifier, form: str, seed: int, sampled: bool, bad: int, everywhere: bool
) -> None:
    proposal, logits, state = case(seed, form, sampled=sampled)
    clean = verifier.accept(proposal, logits, state)
    logits = logits.clone()
    if everywhere:
        logits[bad] = torch.nan
    else:
        logits[bad, 0, 3] = torch.nan
    dirty = verifier.accept(proposal, logits, state)
    others = [r for r in range(len(PARAMS)) if r != bad]
    assert same(clean, dirty, others, others)
    assert ints(dirty.finite) == [r != bad for r in range(len(PARAMS))]
    assert bool(((dirty.tokens >= 0) & (dirty.tokens < V)).all())
    assert bool(((dirty.counts >= 0) & (dirty.counts <= proposal.shape.depth)).all())


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), sampled=st.booleans())
def test_padding_nodes_may_hold_anything(verifier: Verifier, form: str, seed: int, sampled: bool) -> None:
    proposal, logits, state = case(seed, form, sampled=sampled)
    clean = verifier.accept(proposal, logits, state)
    padding = proposal.depths[:, 1:] > proposal.draft_lens[:, None]
    logits = logits.clone()
    logits[:, 1:][padding] = torch.nan
    poisoned = evolve(proposal, tokens=proposal.tokens.masked_fill(padding, 10**12))
    if proposal.distribution is not None:
        probs = proposal.distribution.probs.clone()
        probs[padding] = torch.nan
        poisoned = evolve(poisoned, distribution=DraftDistribution(probs, warped=False))
    dirty = verifier.accept(poisoned, logits, state)
    every = range(len(PARAMS))
    assert same(clean, dirty, every, every)
    assert bool(dirty.finite.all())


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_token_without_probability_is_never_accepted_nor_drawn(verifier: Verifier, form: str, sampled: bool) -> None:
    """The target gives nothing to any drafted token; rows with nothing else to say are told as not finite."""
    for seed in range(20):
        proposal, logits, state = case(seed, form, sampled=sampled)
        logits = logits.scatter(2, proposal.tokens[:, None].expand(-1, 8, -1), -torch.inf)
        accepted = verifier.accept(proposal, logits, state)
        kept = accepted.finite
        assert ints(accepted.counts[kept]) == [0] * int(kept.sum())
        drawn = accepted.tokens[:, 0]
        drafted = (proposal.tokens == drawn[:, None]).any(1)
        possible = logits[:, 0].gather(1, drawn[:, None]).squeeze(1).isfinite()
        assert bool((possible | ~kept).all())
        assert not bool((drafted & kept & possible).any())


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=name)
def test_a_draft_equal_to_the_target_is_accepted_whole(verifier: Verifier) -> None:
    """p = q: nothing is left of p after subtraction but rounding, and nothing may be refused."""
    generator = torch.Generator().manual_seed(0)
    rows = 500
    state = decode_state([[1]] * rows, [SamplingParams(temperature=1.0, seed=r) for r in range(rows)], V)
    logits = torch.randn(rows, 5, V, generator=generator)
    probs = logits.softmax(-1)[:, :-1]
    tokens = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(rows, 4)
    proposal = evolve(chain(tokens), distribution=DraftDistribution(probs, warped=True))
    accepted = verifier.accept(proposal, logits, state)
    assert ints(accepted.counts) == [4] * rows


def test_block_verification_refuses_trees_and_names_what_to_do() -> None:
    proposal, logits, state = case(0, "tree", sampled=False)
    with pytest.raises(ConfigurationError, match=r"tree of 7 tokens in \d levels.*chains only.*'rejection'"):
        BlockVerifier().accept(proposal, logits, state)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base without annotations
    """Notes operators that read the device from the host or have shapes that depend on values."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "multinomial", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # pyright: ignore[reportUnknownMemberType] - likewise
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        called = str(func)
        by_mask = "index" in called and any(
            isinstance(part, Tensor) and part.dtype == torch.bool
            for arg in args[1:]
            if isinstance(arg, list)
            for part in cast("list[object]", arg)
        )
        if by_mask or any(word in called for word in self.FORBIDDEN):
            self.seen.append(called)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("verifier", "form"), FORMS, ids=name)
@pytest.mark.parametrize("sampled", [False, True])
def test_nothing_is_read_by_the_host(verifier: Verifier, form: str, sampled: bool) -> None:
    proposal, logits, state = case(3, form, sampled=sampled)
    with Watch() as watch:
        verifier.accept(proposal, logits, state)
    assert watch.seen == []


def test_a_host_read_is_noticed() -> None:
    numbers = torch.arange(4)
    with Watch() as watch:
        int(numbers[1])
        _ = numbers[numbers > 2]
    assert len(watch.seen) >= 2
