"""The benchmark with images: everybody answers the same questions, ratios are over the right row, goals are stated."""

from __future__ import annotations

import torch

from benchmarks._backends import EAGER, WHOLE_ROUND
from benchmarks._cases import Case
from benchmarks._digits import DRAFTS, Reading, load_seeing_pair, read_rows, seeing_contestant
from benchmarks._hub_images import seeing_peer
from benchmarks._race import Answer, Result, race
from benchmarks._speed import Group, Row
from benchmarks.gpu_images import (
    BREAKABLE,
    Seen,
    digit_goals,
    digits_table,
    images_table,
    models_of,
    name_of,
    speed_goals,
    steps_on,
)

CPU = torch.device("cpu")


def test_questions_are_told_apart_by_their_ids_and_have_long_answers() -> None:
    questions = load_seeing_pair(CPU).questions()
    assert len({question.token_ids for question in questions}) == 8
    assert [len(question.images) for question in questions] == [1, 0] * 4
    peer = seeing_peer("transformers", CPU, torch.float32, questions)
    answer = peer.generate([question.token_ids for question in questions])
    assert min(map(len, answer.token_ids)) > 20
    assert {ids[-1] for ids in answer.token_ids} == {0}, "all end by themselves"


def test_everybody_gives_the_answers_of_transformers() -> None:
    pair = load_seeing_pair(CPU)
    questions = pair.questions()[:4]
    models = models_of(pair, (EAGER, WHOLE_ROUND), "sdpa")
    assert len(models) == 2 * len(DRAFTS)
    peer = seeing_peer("transformers", CPU, torch.float32, questions)
    prompts = [question.token_ids for question in questions]
    cases = [Case(*pair) for pair in zip(prompts, peer.generate(prompts).token_ids, strict=True)]
    names = (name_of("chain 5", EAGER), name_of("drafting off", EAGER))
    field = [peer, *(seeing_contestant(name, models[name], questions) for name in names)]
    for batch in (1, 4):
        theirs, chain, plain = race(field, cases, batch, repeats=1)
        assert theirs.acceptance_length == plain.acceptance_length == 1.0
        assert chain.acceptance_length > 2.5
        assert theirs.answer.num_passes == plain.answer.num_passes > 2 * chain.answer.num_passes


def test_a_row_is_read_by_its_digits() -> None:
    model = models_of(load_seeing_pair(CPU), (EAGER,), "sdpa")[name_of("chain 5", EAGER)]
    reading = read_rows(model, 20)
    assert reading.digits >= 0.95
    assert 0.7 <= reading.rows <= reading.digits
    assert len(set(reading.texts)) > 15


def test_breakable_graphs_are_for_the_longest_chain() -> None:
    assert steps_on(CPU, quick=False) == (EAGER,)
    models = models_of(load_seeing_pair(CPU), steps_on(CPU, quick=True), "sdpa")
    assert [name for name in models if BREAKABLE in name] == [name_of("chain 5", BREAKABLE)]


def row(name: str, speed: float) -> Row:
    """One prompt, 64 tokens, one group of one repetition."""
    return Row(Result(name, 1, Answer((tuple(range(64)),), num_passes=64), ((64 / speed,),)))


def seen(dtype: str, fast: float, texts: tuple[str, ...]) -> Seen:
    rows = [
        row("transformers", 50),
        row(name_of("drafting off", EAGER), 80),
        row(name_of("drafting off", WHOLE_ROUND), 100),
    ]
    rows += [row(name_of("chain 3", EAGER), 160), row(name_of("chain 5", WHOLE_ROUND), fast)]
    group = Group(dtype, 1, tuple(rows), rows[0].result.answer.token_ids)
    readings = {"drafting off": Reading(0.98, 0.9, 1.0, ("a", "b")), "chain 5": Reading(0.96, 0.9, 4.0, texts)}
    return Seen(dtype, (group,), readings)


def test_ratios_are_over_drafting_off_on_the_same_step() -> None:
    table = images_table(seen("float32", 170, ("a", "b")).groups)
    place = table.columns.index("× drafting off")
    assert [cells[place] for cells in table.rows] == ["", "1.00", "1.00", "2.00", "1.70"]
    assert [cells[place - 1] for cells in table.rows] == ["1.00", "1.60", "2.00", "3.20", "3.40"]


def test_goals_are_those_of_graphs_and_of_float32_texts() -> None:
    both = [seen("float32", 149, ("a", "c")), seen("bfloat16", 151, ("a", "c"))]
    speed, half = speed_goals(both, WHOLE_ROUND)
    assert (round(speed.found, 2), speed.reached) == (1.49, False)
    assert "chain 5, whole round" in speed.text
    assert half.reached
    digits, same = digit_goals(both)
    assert [(goal.found, goal.reached) for goal in (digits, same)] == [(0.96, False), (0.5, False)]
    assert [cells[-1] for cells in digits_table([seen("float32", 1, ("a", "c"))]).rows] == ["2 of 2", "1 of 2"]
