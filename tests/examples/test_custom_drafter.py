"""The example of a drafter of one's own: short, typed, lossless, and worth it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from examples.custom_drafter import ReferenceBuilder
from outrider.types.request import Request
from tests.cases_data import greedy_cases
from tests.support.engines import engine_of, run
from tests.support.pair import trained_pair
from tests.support.recording import RecordingBuilder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_drafter.py"


def test_it_runs_as_the_docs_say_and_stays_short(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *text, same, acceptance = capsys.readouterr().out.splitlines()
    assert "fibonacci number" in "".join(text)
    assert same == "same tokens as without drafting: True"
    assert float(acceptance.removeprefix("tokens per target pass: ")) > 6.0
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 100


def test_whatever_the_reference_the_output_is_the_targets() -> None:
    cases = greedy_cases()[:4]
    requests = [Request(case.prompt, 40) for case in cases]
    noise = tuple(int(token) for token in torch.randint(3, 4096, (50,), generator=torch.Generator().manual_seed(0)))
    for reference in (cases[0].prompt + cases[0].token_ids, noise):
        found = run(engine_of(trained_pair().target, ReferenceBuilder(reference, 5)), requests)
        assert [tuple(outcome.token_ids) for outcome in found] == [case.token_ids[:40] for case in cases]


def test_it_copies_what_follows_the_last_such_place_and_no_further() -> None:
    reference = (9, 4, 5, 6, 7, 4, 5, 8)
    recording = RecordingBuilder(ReferenceBuilder(reference, 3))
    run(engine_of(trained_pair().target, recording), [Request((1, 9, 4), 2), *([Request((1, 400), 9)] * 2)])
    for row in recording.proposed:
        places = [i for i in range(1, len(reference)) if reference[i - 1 : i + 1] == row.history[-2:]]
        expected = reference[places[-1] + 1 :][:3] if places else ()
        assert row.tokens[: row.draft_len] == expected
