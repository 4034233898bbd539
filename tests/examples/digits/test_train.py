"""The whole course, cut short: files that the libraries read, and a report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from examples.digits.schedule import Course, train
from examples.digits.settings import IMAGE_TOKENS
from examples.digits.train import main
from outrider.checkpoint import Checkpoint
from outrider.interfaces import LoadOptions
from outrider_adapters.eagle import eagle3_loader
from tests.examples.digits.pair import load_processor
from tests.examples.digits.test_tokens import CANVAS

MIB = 1 << 20


def test_a_quick_run_writes_a_pair_and_says_what_it_reaches(tmp_path: Path) -> None:
    command = [str(tmp_path), "--quick", "--minutes-target", "0.02", "--minutes-draft", "0.02"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    for row in ("digits read right", "answers exact", "acceptance length, chain of 5", "parameters, target"):
        assert row in result.output
        assert row in report
    target, draft = tmp_path / "tiny-llava", tmp_path / "tiny-llava-eagle3"
    assert sum(file.stat().st_size for file in target.iterdir()) < 5.5 * MIB
    assert sum(file.stat().st_size for file in draft.iterdir()) < 1.8 * MIB
    assert int((load_processor(target).ids("<image>", [CANVAS]) == 3).sum()) == IMAGE_TOKENS
    config = Checkpoint(draft).config
    assert config.get_str("media_view") == "target_embedding"
    spec = eagle3_loader().load(Checkpoint(draft), LoadOptions(torch.device("cpu"), torch.float32)).spec
    assert [tap.boundary for tap in spec.taps] == [1, 2, 3]


def test_a_course_ends_when_its_minutes_do() -> None:
    weight = torch.nn.Linear(1, 1)
    done: list[float] = []

    def loss_of(_: object) -> torch.Tensor:
        done.append(1.0)
        return weight.weight.square().sum()

    losses = train([weight], Course(10**9, 0.002, 0.1), loss_of, torch.device("cpu"), lambda _: None)
    assert 1 < len(done) < 10**6
    assert len(losses) == 1


def test_a_course_brings_the_loss_down_and_ends_after_its_steps() -> None:
    weight = torch.nn.Linear(1, 1)
    losses = train(
        [weight],
        Course(100, 5.0, 0.1),
        lambda _: (weight.weight - 3.0).square().sum(),
        torch.device("cpu"),
        print,
    )
    assert len(losses) == 20
    assert losses[-1] == pytest.approx(0.0, abs=1e-2)
