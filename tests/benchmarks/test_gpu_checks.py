"""The checks that a card must pass can fail, each for its own reason, and one failure hides no other."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from benchmarks import _gpu_bench
from benchmarks._backends import EAGER, GRAPHS, runner
from benchmarks._cases import chain_lengths, greedy_cases
from benchmarks._gpu_bench import Bench, Generated, differences, gap_where_they_part, generate
from benchmarks._gpu_checks import check_ladder, run_checks
from benchmarks.gpu import main, steps_of
from benchmarks.gpu_checks import outcome_table
from outrider.interfaces import GraphRunner
from outrider.types import Role

BENCH = Bench(torch.device("cpu"), quick=True)
CASES = greedy_cases()[:2]


def test_a_failing_check_is_reported_and_the_next_one_runs() -> None:
    def fails(bench: Bench) -> str:
        raise RuntimeError("no kernel image\nmore")

    outcomes = list(run_checks(BENCH, {"first": fails, "second": lambda bench: f"{bench.device}"}))
    assert [(outcome.name, outcome.passed) for outcome in outcomes] == [("first", False), ("second", True)]
    assert outcome_table(outcomes).rows == (
        ("first", "FAILED", "RuntimeError: no kernel image"),
        ("second", "passed", "cpu"),
    )


def test_wrong_tokens_and_wrong_acceptance_are_found() -> None:
    pair, lengths = BENCH.pair(), chain_lengths("eagle3-chain5")[:2]
    found = generate(pair, pair.chain(5), [case.prompt for case in CASES], batch=2, page_size=1)
    assert differences(found, CASES, lengths) == []
    tokens = (found.token_ids[0], (*found.token_ids[1][:-1], 0))
    assert differences(evolve(found, token_ids=tokens), CASES, lengths) == ["prompt 1: not the reference's tokens"]
    shorter = evolve(found, accept_lengths=((1, *found.accept_lengths[0][1:]), found.accept_lengths[1]))
    assert "prompt 0: accepted (1," in differences(shorter, CASES, lengths)[0]
    assert differences(Generated(found.token_ids, ()), CASES, None) == []


def test_the_gap_is_that_of_the_logits_where_texts_part() -> None:
    target, case = BENCH.pair().target, CASES[0]
    ids = case.continuation
    assert gap_where_they_part(target, case.prompt, ids, ids) == 0.0
    # The greedy token is the best: every other one is behind it, and most are far behind.
    gaps = [gap_where_they_part(target, case.prompt, ids, (*ids[:10], other, *ids[11:])) for other in (5, 500, 3000)]
    assert all(gap > 0 for gap in gaps)
    assert max(gaps) > 5
    assert gaps[0] == pytest.approx(gap_where_they_part(target, case.prompt, (*ids[:10], 5), ids[:11]))


def test_the_ladder_is_what_runs_and_one_that_never_captures_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "served by graphs" in check_ladder(BENCH)

    def never(name: str, role: Role = Role.BOTH) -> GraphRunner:
        return runner(EAGER, role)

    monkeypatch.setattr(_gpu_bench, "runner", never)
    with pytest.raises(AssertionError, match=r"nothing ran as phase, but \{'eager'"):
        check_ladder(BENCH)


def test_every_step_is_measured_in_half_precision_but_of_trees() -> None:
    assert steps_of("chain 3", torch.float32) == ()
    assert steps_of("drafting off", torch.float32) == (EAGER, "whole round")
    assert steps_of("chain 5", torch.float32) == steps_of("drafting off", torch.bfloat16) == (EAGER, *GRAPHS)
    assert steps_of("tree 4x5, 15 tokens", torch.bfloat16) == (EAGER, "whole round")


def test_no_card_is_said_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert "no CUDA device" in capsys.readouterr().out
    assert main(["--device", "cpu", "--attention", "triton"]) == 1
    assert "triton does not run on cpu here; there is sdpa" in capsys.readouterr().out
