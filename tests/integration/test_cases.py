"""The trained pair against the cases with right answers: every token, and every round's acceptance length."""

from __future__ import annotations

import random

import pytest
from attrs import evolve

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.interfaces import BoundDraft, DrafterBuilder
from outrider.loop.build import EngineOptions
from outrider.types.request import Request
from tests.cases_data import TreeCase, chain_lengths, greedy_cases, tree_cases
from tests.support.engines import Outcome, engine_of, run
from tests.support.pair import trained_pair

CASES = greedy_cases()
COUNT = 64


def generate(
    builder: DrafterBuilder | None,
    batch: int = 8,
    page_size: int = 16,
    chosen: range = range(8),
    order_seed: int = 0,
    more: EngineOptions | None = None,
) -> list[Outcome]:
    """Outcomes of the ``chosen`` cases in their own order, submitted in another one; each token for token right."""
    options = evolve(more or EngineOptions(), max_batch_size=batch, page_size=page_size, max_length=256)
    engine = engine_of(trained_pair().target, builder, options)
    order = random.Random(order_seed).sample(chosen, len(chosen))
    found = dict(zip(order, run(engine, [Request(CASES[index].prompt, COUNT) for index in order]), strict=True))
    for index in chosen:
        assert tuple(found[index].token_ids) == CASES[index].token_ids
        assert found[index].reason == ("eos" if CASES[index].token_ids[-1] == 0 else "length")
    return [found[index] for index in chosen]


@pytest.mark.parametrize(
    ("length", "batch", "page_size", "chosen"),
    [
        (1, 8, 16, range(8)),
        (2, 3, 1, range(5)),
        (3, 8, 1, range(8)),
        (4, 1, 16, range(2)),
        (5, 3, 16, range(3, 8)),
        (6, 1, 1, range(2, 4)),
        (7, 8, 16, range(8)),
        (8, 8, 1, range(8)),
    ],
)
def test_chains_of_every_length(length: int, batch: int, page_size: int, chosen: range) -> None:
    generate(ChainBuilder(trained_pair().eagle3, length), batch, page_size, chosen, order_seed=length)


def test_plain_decoding() -> None:
    generate(None)


def test_a_host_that_runs_behind_and_prompts_in_pieces() -> None:
    draft = trained_pair().eagle3
    behind = EngineOptions(rounds_in_flight=1, max_prefill_tokens=7, num_pages=70)
    generate(ChainBuilder(draft, 5), order_seed=9, more=behind)
    further_behind = EngineOptions(rounds_in_flight=2, max_prefill_tokens=11)
    generate(TreeBuilder(draft, 3, 3, 9), page_size=5, order_seed=10, more=further_behind)


def lengths(outcomes: list[Outcome]) -> list[tuple[int, ...]]:
    """Acceptance lengths, the last round aside: a cut may end a request in any round that reaches its end."""
    return [tuple(outcome.accept_lengths[:-1]) for outcome in outcomes]


@pytest.mark.parametrize(("case", "draft"), [("eagle3-chain5", "eagle3"), ("eagle1-chain4", "eagle1")])
def test_chains_accept_what_the_reference_accepts(case: str, draft: str) -> None:
    pair = trained_pair()
    bound: BoundDraft = pair.eagle3 if draft == "eagle3" else pair.eagle1
    expected = [each[:-1] for each in chain_lengths(case)]
    assert lengths(generate(ChainBuilder(bound, int(case[-1])))) == expected


@pytest.mark.parametrize("case", tree_cases(), ids=lambda case: f"width {case.width}")
@pytest.mark.parametrize(("batch", "page_size"), [(4, 16), (3, 5)])
def test_trees_accept_what_the_reference_accepts(case: TreeCase, batch: int, page_size: int) -> None:
    chosen = range(len(case.accept_lengths))
    tree = TreeBuilder(trained_pair().eagle3, case.width, case.depth, case.num_tokens)
    expected = [each[:-1] for each in case.accept_lengths]
    assert lengths(generate(tree, batch, page_size, chosen)) == expected


def test_a_tree_of_width_one_accepts_what_a_chain_accepts() -> None:
    draft = trained_pair().eagle3
    expected = [each[:-1] for each in chain_lengths("eagle3-chain5")]
    assert lengths(generate(TreeBuilder(draft, 1, 5, 5))) == expected
    assert lengths(generate(StaticTreeBuilder(draft, (0, 1, 2, 3, 4)))) == expected


def degenerate(name: str) -> DrafterBuilder:
    draft = trained_pair().eagle3
    match name:
        case "one level":
            return TreeBuilder(draft, 4, 1, 3)
        case "fewer than the width":
            return TreeBuilder(draft, 3, 3, 2)
        case "all candidates":
            return TreeBuilder(draft, 3, 2, 12)
        case _:
            return StaticTreeBuilder(draft, (0, 0, 0, 1, 1, 2, 4, 4, 5, 7))


@pytest.mark.parametrize("name", ["one level", "fewer than the width", "all candidates", "static"])
def test_degenerate_trees_change_nothing(name: str) -> None:
    generate(degenerate(name))


def test_a_better_tree_accepts_more() -> None:
    """A static tree with more below each node takes at least as much in total as its first path."""
    draft = trained_pair().eagle3
    chain = generate(StaticTreeBuilder(draft, (0, 1, 2)))
    tree = generate(StaticTreeBuilder(draft, (0, 0, 0, 1, 1, 2, 4, 5)))
    assert sum(len(each.accept_lengths) for each in tree) < sum(len(each.accept_lengths) for each in chain)
