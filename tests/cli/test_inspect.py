"""``outrider inspect``: facts, problems, binding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

import pytest

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.interfaces import ModelPair
from tests.cli.support import Command, parsed


@pytest.fixture
def narrow(tiny_pair: ModelPair, tmp_path: Path) -> Path:
    """The draft with a config that says another width than its tensors."""
    directory = tmp_path / "narrow"
    shutil.copytree(tiny_pair.drafts[0], directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
    return directory


@pytest.fixture
def other_target(tiny_pair: ModelPair, tmp_path: Path) -> Path:
    """The target under another name, so that it is not the one asked for."""
    return Path(shutil.copytree(tiny_pair.target, tmp_path / "other"))


def test_lines_say_what_the_description_says(outrider: Command, tiny_pair: ModelPair) -> None:
    draft = tiny_pair.drafts[0]
    described = registry.describe(Checkpoint(draft))
    ran = outrider("inspect", draft)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"checkpoint: {draft}",
        f"kind: {described.kind}",
        *(f"{key}: {value}" for key, value in described.facts),
        *(f"note: {note}" for note in described.notes),
    ]


def test_json_is_one_line_a_checkpoint(outrider: Command, tiny_pair: ModelPair) -> None:
    ran = outrider("inspect", tiny_pair.target, tiny_pair.drafts[1], "--json")
    described = [registry.describe(Checkpoint(directory)) for directory in (tiny_pair.target, tiny_pair.drafts[1])]
    assert parsed(ran.out) == [
        {
            "checkpoint": str(directory),
            "kind": each.kind,
            "facts": dict(each.facts),
            "notes": list(each.notes),
            "problems": [],
        }
        for directory, each in zip((tiny_pair.target, tiny_pair.drafts[1]), described, strict=True)
    ]


def test_a_pair_stands_for_its_target_and_drafts(outrider: Command, tiny_pair: ModelPair) -> None:
    lines = parsed(outrider("inspect", "tiny", "--json").out)
    assert [Path(str(line["checkpoint"])) for line in lines] == [tiny_pair.target, *tiny_pair.drafts]


def test_problems_end_with_1_and_the_others_are_shown(outrider: Command, tiny_pair: ModelPair, narrow: Path) -> None:
    ran = outrider("inspect", narrow, tiny_pair.drafts[0], "--json")
    first, second = parsed(ran.out)
    problems = cast("list[str]", first["problems"])
    assert ran.code == 1
    assert problems
    assert second["problems"] == []
    count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
    assert ran.err == f"error: {count} in {narrow}\n"


def test_what_is_no_checkpoint_is_a_problem_of_its_own(outrider: Command, tiny_pair: ModelPair, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = outrider("inspect", tmp_path / "empty", tmp_path / "none", tiny_pair.target, "--json")
    empty, none, target = parsed(ran.out)
    assert ran.code == 1
    assert (empty["kind"], none["kind"]) == ("unknown", "unknown")
    assert "no config.json" in str(empty["problems"])
    assert "does not exist" in str(none["problems"])
    assert target["problems"] == []
    assert ran.err == f"error: 2 problems in {tmp_path / 'empty'}, {tmp_path / 'none'}\n"


def test_a_draft_binds_to_its_target(outrider: Command, tiny_pair: ModelPair) -> None:
    ran = outrider("inspect", "tiny", "--target", tiny_pair.target, "--json")
    target, *drafts = parsed(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert "binds to" not in str(target["facts"])  # the target itself is not tried as a draft
    assert ["tiny-llama: yes" in str(draft["facts"]) for draft in drafts] == [True, True]


def test_a_target_given_as_a_draft_does_not_bind(
    outrider: Command, tiny_pair: ModelPair, other_target: Path, narrow: Path
) -> None:
    ran = outrider("inspect", other_target, narrow, "--target", tiny_pair.target, "--json")
    target, broken = parsed(ran.out)
    assert ran.code == 1
    assert "tiny-llama: no'" in str(target["facts"])
    assert "no draft loader recognises" in str(target["problems"])
    assert "tiny-llama: not tried" in str(broken["facts"])


def test_a_draft_that_does_not_fit_says_why(outrider: Command, tiny_pair: ModelPair, tmp_path: Path) -> None:
    """Nothing is wrong with a draft that is fed layer 50; only this target has no such layer."""
    draft = Path(shutil.copytree(tiny_pair.drafts[0], tmp_path / "draft"))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(
        json.dumps({**config, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 50]}})
    )
    assert outrider("inspect", draft).code == 0
    ran = outrider("inspect", draft, "--target", tiny_pair.target)
    assert ran.code == 1
    assert "binds to: tiny-llama: no\n" in ran.out
    assert "50" in ran.out[ran.out.index("problem: ") :]
    assert ran.err == f"error: 1 problem in {draft}\n"


def test_a_target_that_cannot_be_loaded_ends_with_1(outrider: Command, tiny_pair: ModelPair, tmp_path: Path) -> None:
    ran = outrider("inspect", tiny_pair.drafts[0], "--target", tmp_path / "none")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {tmp_path / 'none'}: does not exist")


def test_nothing_to_inspect_is_bad_usage(outrider: Command) -> None:
    assert outrider("inspect").code == 2
