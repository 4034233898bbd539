"""Prompts are ragged and as many tokens as were asked; graphs give the first tokens of eager passes."""

from __future__ import annotations

import pytest
import torch

from benchmarks._pair import load_pair
from benchmarks.gpu_prefill import TOTALS, Measured, goals, measure, prefill_table, ragged_prompts


@pytest.mark.parametrize("total", [100, 777, *TOTALS])
def test_prompts_are_ragged_and_fit(total: int) -> None:
    prompts = ragged_prompts(total)
    lengths = [len(prompt) for prompt in prompts]
    assert sum(lengths) == total
    assert len(prompts) == len(set(lengths)) == 8
    assert max(lengths) < 512


def test_graphs_give_the_first_tokens_of_eager_passes() -> None:
    found = measure(load_pair(torch.device("cpu")), 64, ["sdpa"], repeats=1)
    assert found.first_tokens["sdpa", "eager"] == found.first_tokens["sdpa", "breakable"]
    assert len(set(found.first_tokens["sdpa", "eager"])) > 1
    assert all(0 < ms < 60_000 for ms in found.ms.values())


def test_the_ratio_is_that_of_one_backend() -> None:
    ms = {("a", "eager"): 3.0, ("a", "breakable"): 2.0, ("b", "eager"): 8.0, ("b", "breakable"): 2.0}
    tokens = dict.fromkeys(ms, (1, 2)) | {("b", "breakable"): (1, 3)}
    found = [Measured(512, ms, tokens)]
    assert [row[1:] for row in prefill_table(found).rows] == [
        ("a", "3.00", "2.00", "1.50", "2 of 2"),
        ("b", "8.00", "2.00", "4.00", "1 of 2"),
    ]
    assert [goal.reached for goal in (*goals(found, "a"), *goals(found, "b"))] == [True, True]
    assert not goals([Measured(512, ms | {("a", "breakable"): 2.1}, tokens)], "a")[0].reached
