"""What is captured, for whom, and what is told of it: the flags about runners."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch

from outrider import TextDelta
from outrider.cli.render import capture_bar, show_report
from outrider.generation.report import ReportRow
from outrider.types import CaptureRecord, Phase
from tests.cli.support import PROMPTS, Command, Parts, interrupt_after

FEW = ("--max-length", "96", "--capture-tokens", "4,8", "--capture-requests", "1")
TAPE = ("generate", PROMPTS[0], "--max-new-tokens", "8", "--runner", "tape", *FEW)


def told(text: str) -> dict[str, str]:
    """The lines that are keys and values."""
    return {key: value for key, _, value in (line.partition(": ") for line in text.splitlines())}


def test_explaining_tells_what_ran_how_after_the_statistics(outrider: Command, parts: Parts) -> None:
    ran = outrider(*TAPE, "--explain")
    assert (ran.code, ran.out) == (0, parts.reference(PROMPTS[0], 8)[0] + "\n")
    shown = told(ran.err)
    keys = list(shown)
    assert keys.index("finish reason") + 1 == keys.index("runner")
    assert shown["runner"] == "tape"
    assert shown["target prefill"] == "breakable 1"
    passes = int(shown["target passes"]) - 1
    assert shown["round"] == f"round {passes - 1}, eager 1 (the first round of a shape is its warm-up)"
    assert shown["target prefill, no phase graph"].startswith("1 time: queries per request differ")
    assert shown["round graphs"].startswith("1 in ")


def test_without_asking_nothing_is_told(outrider: Command) -> None:
    assert "runner" not in told(outrider(*TAPE).err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device has graphs")
def test_a_device_without_graphs_is_told_once_and_captures_nothing(outrider: Command) -> None:
    asked = ("generate", PROMPTS[0], "--max-new-tokens", "4", "--runner", "cuda-graph", *FEW)
    ran = outrider(*asked, "--capture")
    assert ran.code == 0
    assert ran.err.count("note: runner cuda-graph: ") == 1
    assert "cpu is no CUDA device; all of it ran eagerly" in told(ran.err)["note"]
    assert told(ran.err)["graphs in all"].endswith("at 1 size")


def test_the_eager_runner_is_explained_too(outrider: Command) -> None:
    shown = told(outrider("generate", PROMPTS[0], "--max-new-tokens", "4", "--explain").err)
    assert shown["runner"] == "eager"
    assert shown["target prefill"] == "eager 1"
    assert shown["target verify"] == f"eager {int(shown['target passes']) - 1}"


def test_a_run_that_is_broken_off_is_explained_as_far_as_it_came(outrider: Command) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "24", "--explain", spoil=interrupt_after(deltas=2))
    assert ran.code == 130
    assert told(ran.err)["target prefill"] == "eager 1"


def test_capturing_comes_first_and_is_summed_up(outrider: Command, parts: Parts) -> None:
    ran = outrider(*TAPE, "--capture", "--explain")
    assert (ran.code, ran.out) == (0, parts.reference(PROMPTS[0], 8)[0] + "\n")
    before, _, after = ran.err.partition("tokens: ")
    summary = told(before)
    assert summary["graphs in all"].endswith(f", at {2 + 2 * 2} sizes")
    assert "MiB" in summary["breakable graphs"]
    shown = told(after)
    assert shown["round"] == f"round {int(shown['target passes']) - 1}", "no round was a warm-up"
    assert (shown["breakable graphs"], shown["round graphs"]) == (summary["breakable graphs"], summary["round graphs"])


def test_a_comparison_captures_for_both_sides(outrider: Command) -> None:
    ran = outrider(*TAPE, "--capture", "--compare")
    assert told(ran.err)["same tokens"] == "yes, all 8"


@pytest.mark.parametrize(
    ("role", "kept", "gone"), [("prefill", "breakable", "round"), ("decode", "round", "breakable")]
)
def test_a_role_leaves_out_the_other_half(outrider: Command, role: str, kept: str, gone: str) -> None:
    ran = outrider(*TAPE, "--capture", "--explain", "--role", role)
    shown = told(ran.err)
    assert f"{kept} graphs" in shown
    assert f"{gone} graphs" not in shown
    assert shown[f"left out by role {role}"] == f"{2 if role == 'decode' else 4} sizes"
    assert any(f"on a worker for {role} only" in value for value in shown.values())


def test_a_runner_without_graphs_says_that_it_captured_nothing(outrider: Command) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "4", "--capture")
    assert ran.err.startswith("graphs in all: 0: the eager runner has no graphs\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--role", "both ways"), "'both ways' is not one of 'both', 'prefill', 'decode'"),
        (("--capture-tokens", ""), "there is none; give at least one"),
        (("--capture-tokens", "64,16"), "not in ascending order; give [16, 64]"),
        (("--capture-tokens", "16,16"), "[16] are there more than once"),
        (("--capture-tokens", "16,many"), "'many' in '16,many'; give whole numbers"),
        (("--capture-requests", "0,1"), "[0] are below 1"),
        (("--capture-requests", "1.5"), "'1.5' in '1.5'; give whole numbers"),
        (("--capture-requests", "2000000"), "above 1048576, the most a bucket may hold"),
    ],
)
def test_bad_usage_ends_with_2_before_anything_is_loaded(
    outrider: Command, flags: tuple[str, ...], message: str
) -> None:
    ran = outrider("generate", "x", *flags)
    assert (ran.code, ran.out, ran.models) == (2, "", [])
    assert message in " ".join(ran.err.split())
    assert flags[0] in ran.err


def test_ctrl_c_while_capturing_ends_with_130(outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int, captured: Sequence[CaptureRecord]) -> None:
        raise KeyboardInterrupt

    class Bar:
        def __enter__(self) -> object:
            return interrupt

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("outrider.cli.running.capture_bar", Bar)
    ran = outrider(*TAPE, "--capture", spoil=nothing)
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")


def nothing(deltas: Iterator[TextDelta]) -> Iterator[TextDelta]:
    raise AssertionError("nothing is generated after an interrupt")


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


ROWS = (ReportRow("round", "round 3"), ReportRow("round, no round graph", "1 time: [because]\n  - of a line"))


@pytest.mark.parametrize("columns", ["100", "40"])
def test_a_terminal_gets_a_table_where_one_has_room(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", columns)
    show_report(ROWS)
    shown = terminal.getvalue()
    assert [part for part in ("round 3", "[because]", "  - of a line") if part not in shown] == []
    assert ("round: round 3\n" in shown) is (columns == "40")


def test_the_bar_shows_each_graph_and_its_memory_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    record = CaptureRecord(Phase.ROUND, "round", "2 requests", 0.5, 3 << 20)
    shown: list[str] = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with capture_bar() as progress:
            progress(1, 3, ())
            progress(2, 3, (record,))
            progress(3, 3, (record,))
        shown.append(stream.getvalue())
    assert "round, 2 requests: 3.0 MiB; 6.0 MiB in all" in shown[0]
    assert shown[1] == ""
