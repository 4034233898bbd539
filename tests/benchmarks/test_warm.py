"""What is compiled beforehand is done once, apart, and one failure is told without stopping the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import _warm
from benchmarks._warm import NEEDED, TASKS, main, tasks_of

CPU = torch.device("cpu")
ROOT = Path(_warm.__file__).resolve().parent


def test_every_benchmark_on_a_card_names_tasks_that_exist() -> None:
    assert sorted(NEEDED) == sorted(path.stem for path in ROOT.glob("gpu*.py"))
    assert {task for tasks in NEEDED.values() for task in tasks} == set(TASKS)


def test_a_task_that_two_benchmarks_need_is_done_once() -> None:
    both = tasks_of(["gpu", "gpu_checks"])
    assert len(both) == len(set(both))
    assert set(both) == {*NEEDED["gpu"], *NEEDED["gpu_checks"]}
    assert tasks_of(["no such"]) == ()


@pytest.mark.parametrize("task", ["pair float32 8", "transformers 1", "images float32"])
def test_tasks_run(task: str) -> None:
    assert main(["--task", task, "--device", "cpu"]) == 0


def test_a_task_that_fails_is_told_and_the_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def apart(device: str, task: str) -> int:
        return int(task not in TASKS or device != "cpu")

    assert main(["gpu_attention", "--device", "no such device"]) == 1
    assert "attention FAILED" in capfd.readouterr().err
    monkeypatch.setitem(NEEDED, "gpu_prefill", ("no such task", "attention"))
    monkeypatch.setattr(_warm, "_apart", apart)
    assert main(["gpu_prefill", "--device", "cpu"]) == 1
    assert main(["gpu_checks", "--device", "cpu"]) == main([]) == 0
