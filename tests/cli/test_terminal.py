"""What is shown on a terminal, what an encoding cannot show, and Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from outrider import Statistics
from outrider.cli.render import Comparison, StatisticsRow, progress_bar, show_statistics, statistics_rows
from outrider.cli.terminal import Interrupt, prepare_streams, read_prompt, write_out
from outrider.errors import InputError, OutputError


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


DRAFTED = Statistics(num_tokens=12, num_target_passes=5, accept_lengths=(3, 1, 4, 3), draft_depth=3, seconds=2.0)
PLAIN = Statistics(num_tokens=12, num_target_passes=12, accept_lengths=(1,) * 11, draft_depth=0, seconds=3.0)
ROWS = statistics_rows(DRAFTED, Comparison(PLAIN, 12), "length")


def test_the_rows_are_the_numbers() -> None:
    assert [(row.label, row.value, row.plain) for row in ROWS] == [
        ("tokens", "12", "12"),
        ("target passes", "5", "12"),
        ("mean acceptance length", "2.75", ""),
        ("acceptance by position", "75% 75% 25%", ""),
        ("seconds", "2.00", "3.00"),
        ("tokens/s", "6.0", "4.0"),
        ("finish reason", "length", ""),
        ("same tokens", "yes, all 12", ""),
        ("speed ratio", "1.50x", ""),
    ]


@pytest.mark.parametrize(("rows", "compared"), [(ROWS, True), (statistics_rows(PLAIN), False)])
def test_a_terminal_gets_a_table_with_every_value(
    monkeypatch: pytest.MonkeyPatch, rows: list[StatisticsRow], compared: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    show_statistics(rows)
    shown = terminal.getvalue()
    assert all(row.label in shown and row.value in shown and row.plain in shown for row in rows)
    assert ("without drafting" in shown) is compared


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    for stream, quiet in ((Terminal(), False), (Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("loading", quiet=quiet) as progress:
            progress(1, 2)
        shown.append(stream.getvalue())
    assert "loading" in shown[0]
    assert shown[1:] == ["", ""]


def test_a_bar_leaves_stdout_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("generating", 2):
        write_out("a line\n")
    assert capsys.readouterr().out == "a line\n"


def test_a_character_the_encoding_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    with pytest.raises(UnicodeEncodeError):
        write_out("é")
    prepare_streams()
    write_out("né→")
    assert raw.getvalue() == b"n??"


def test_a_closed_stderr_is_discarded_and_a_closed_stdout_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    prepare_streams()
    with sys.stderr:
        print("gone", file=sys.stderr)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        prepare_streams()


def test_a_closed_stdin_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_prompt()


@pytest.mark.parametrize("columns", ["1", "20", "59"])
def test_a_narrow_terminal_gets_lines_with_every_value(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", columns)
    show_statistics(ROWS)
    assert all(f"{row.label}: {row.value}\n" in terminal.getvalue() for row in ROWS)


def test_a_full_disk_is_an_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OutputError, match="standard output cannot be written: No space left"):
        write_out("text")


def test_the_first_ctrl_c_asks_and_the_second_raises() -> None:
    with Interrupt() as interrupt:
        asked = [interrupt.requested]
        os.kill(os.getpid(), signal.SIGINT)
        asked.append(interrupt.requested)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == [False, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_not_pythons_own_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            assert not interrupt.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
