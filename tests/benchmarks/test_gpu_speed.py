"""The tables of graphs: ratios are over the best of transformers, costs stand beside speeds, goals are stated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from attrs import evolve

from benchmarks._backends import EAGER, GRAPHS, WHOLE_ROUND, attention_names, runner
from benchmarks._cases import TokenIds, greedy_cases
from benchmarks._goal import Goal
from benchmarks._hub import CompiledPeer, HubPeer
from benchmarks._race import Answer, Contestant, Result, race
from benchmarks._speed import Group, Row, best_transformers, entrant, hub_entrants, measure, speed_table
from benchmarks.gpu_8b import entrants, goals, name_of
from outrider import ChainBuilder
from outrider.checkpoint import Checkpoint
from outrider_adapters.pairs import tiny
from tests.support.pair import trained_pair

CPU = torch.device("cpu")
CASES = greedy_cases()


def row(name: str, speed: float) -> Row:
    """One prompt, 64 tokens, one group of one repetition."""
    return Row(Result(name, 1, Answer((tuple(range(64)),), num_passes=64), ((64 / speed,),)))


def group(*rows: Row, name: str = "float32", batch: int = 1) -> Group:
    return Group(name, batch, rows, rows[0].result.answer.token_ids)


def test_ratios_are_over_the_faster_transformers_of_the_group() -> None:
    one = group(row("transformers", 50), row("transformers, static, compiled", 100), row("chain 5, eager", 300))
    two = group(row("transformers", 10), row("chain 5, eager", 5), batch=8)
    table = speed_table([one, two])
    ratio = table.columns.index("× transformers")
    assert [cells[ratio] for cells in table.rows] == ["0.50", "1.00", "3.00", "1.00", "0.50"]
    assert table.columns[:3] == ("dtype", "batch", "contestant")
    assert math.isnan(best_transformers(group(row("chain 5, eager", 1))))


def test_floors_and_names_have_columns_only_where_there_are_any() -> None:
    plain = group(
        row("transformers", 100), evolve(row("graph", 200), capture_seconds=1.25, graph_bytes=3 << 20), name=""
    )
    table = speed_table([plain])
    assert table.columns[0] == "batch"
    assert not any("floor" in column for column in table.columns)
    seconds = table.columns.index("capture s")
    assert [cells[seconds : seconds + 2] for cells in table.rows] == [("", ""), ("1.2", "3")]
    floored = speed_table([group(evolve(row("transformers", 100), floor_ms=2.5), row("graph", 200), name="")])
    floor = floored.columns.index("floor ms")
    # A hundred tokens a second, one a round: ten milliseconds, of which the floor is a quarter.
    assert [cells[floor : floor + 2] for cells in floored.rows] == [("2.50", "25%"), ("", "")]


def test_goals_are_those_of_whole_rounds() -> None:
    off, chain = name_of(0, WHOLE_ROUND), name_of(5, WHOLE_ROUND)
    rows = [row("transformers", 40), row("transformers, static, compiled", 100), row(off, 171), row(chain, 290)]
    plain, ratio, batched = goals([group(*rows), group(*rows, batch=8)])
    assert [plain.found, ratio.found, batched.found] == pytest.approx([171, 2.9, 2.9])
    assert [plain.reached, ratio.reached] == [True, False]
    # Larger batches are told, and nothing is wanted of them.
    assert batched.reached
    assert str(batched) == "- batch 8, chain 5, whole round, over the best transformers: 2.90"
    assert str(Goal("seconds", 30, 31.0, at_most=True)) == "- seconds: 31.00, wanted at most 30: MISSED"
    assert Goal("seconds", 30, 30.0, at_most=True).reached


def test_every_step_takes_part_and_tells_what_its_graphs_cost() -> None:
    pair = trained_pair()
    field = entrants(pair.target, pair.eagle3, 1, "sdpa")
    assert [one.contestant.name for one in field[:4]] == [f"drafting off, {step}" for step in (EAGER, *GRAPHS)]
    assert [one.drafted for one in field] == [0] * 4 + [3] * 4 + [5] * 4
    eager, graphs = (
        entrant(step, pair.target, None, drafted=0, backend="sdpa", step=step) for step in (EAGER, "breakable")
    )
    assert graphs.capture_seconds is None
    found = measure("float32", [eager, graphs], CASES[1:2], 1, 1, CPU, {0: 2.5}, check=True)
    assert [one.floor_ms for one in found.rows] == [2.5, 2.5]
    assert (found.rows[0].capture_seconds, found.rows[0].graph_bytes) == (None, None)
    seconds, size = found.rows[1].capture_seconds, found.rows[1].graph_bytes
    assert seconds is not None and 0 < seconds < 60  # noqa: PT018 - one fact
    assert size is not None and size > 0  # noqa: PT018 - one fact
    assert graphs.report is not None
    assert {by for (_, by), times in graphs.report.ran.items() if times} == {"breakable"}


def test_nothing_is_captured_once_the_warm_up_is_over() -> None:
    pair = trained_pair()
    field = [
        entrant(step, pair.target, ChainBuilder(pair.eagle3, 3), drafted=3, backend="sdpa", step=step, batch=4)
        for step in (EAGER, WHOLE_ROUND)
    ]
    seen: list[tuple[str, int]] = []
    told: list[str] = []

    def watched(one: Contestant) -> Contestant:
        def generate(prompts: Sequence[TokenIds]) -> Answer:
            answer = one.generate(prompts)
            seen.append((one.name, one.preparations()))
            return answer

        return evolve(one, generate=generate)

    race([watched(one.contestant) for one in field], CASES[:4], 4, repeats=2, tell=told.append)
    eager, graphs = ([count for name, count in seen if name == step] for step in (EAGER, WHOLE_ROUND))
    # One warm-up and two repetitions; rounds of sizes that come once an answer are captured in the second.
    assert eager == [0] * 3
    assert graphs[0] < graphs[-1]
    assert len(set(graphs[-4:])) == 1, "the last warm-up and both repetitions prepare nothing"
    assert len(graphs) > 4
    assert [line.partition(",")[0] for line in told[:2]] == [
        "eager: 1 warm-up",
        f"whole round: {len(graphs) - 2} warm-ups",
    ]


def test_transformers_runs_the_tensors_it_is_given_and_a_static_cache_is_as_good_as_a_dynamic_one() -> None:
    peer = HubPeer(CPU, torch.float32, Checkpoint(tiny().target))
    groups = [[case.prompt for case in CASES[:1]], [case.prompt for case in CASES[1:2]]]
    static = peer.compiled(groups)
    assert static.first_seconds > 0
    race([peer.plain(), static.contestant], CASES[:2], 1, repeats=1)  # raises where a text is not the reference's


def test_a_checkpoint_that_lacks_a_weight_is_not_run() -> None:
    checkpoint = Checkpoint(tiny().target)
    del checkpoint.files.infos["model.norm.weight"]
    with pytest.raises(AssertionError, match=r"lacks model\.norm\.weight"):
        HubPeer(CPU, torch.float32, checkpoint)


def test_a_compiler_that_fails_costs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(peer: HubPeer, groups: Sequence[Sequence[TokenIds]], name: str) -> CompiledPeer:
        raise RuntimeError("no C compiler\nmore")

    monkeypatch.setattr(HubPeer, "compiled", fails)
    peer = HubPeer(CPU, torch.float32)
    found, note = hub_entrants(peer, [[CASES[0].prompt]], compiled=True)
    assert [one.contestant.name for one in found] == ["transformers"]
    assert note == "transformers did not compile: RuntimeError: no C compiler"
    assert hub_entrants(peer, [], compiled=False)[1] == ""


def test_attention_is_what_the_device_has() -> None:
    assert attention_names(CPU) == ("sdpa",)
    assert attention_names(torch.device("cuda"))[-1] == "sdpa"
    with pytest.raises(KeyError):
        runner("no such step")
