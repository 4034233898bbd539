"""The command as a process of its own: pipes, signals, what is installed."""

from __future__ import annotations

import signal
import time
from importlib.metadata import entry_points
from pathlib import Path

from click.testing import CliRunner

from outrider import __version__
from outrider.cli import main
from tests.cli.support import PROMPTS, Parts, parsed, start, write_lines


def test_a_pipe_gets_the_text_of_the_embedded_pair_and_nothing_else(parts: Parts) -> None:
    out, err = start("generate", PROMPTS[0], "--max-new-tokens", "20").communicate(timeout=100)
    assert out.decode() == parts.reference(PROMPTS[0], 20)[0] + "\n"
    assert err.decode().startswith("tokens: 20\n")


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    with start("generate", PROMPTS[0], "--max-new-tokens", "300") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(3)) == 3
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=100)


def test_ctrl_c_ends_with_130_and_keeps_the_lines_that_were_written(parts: Parts, tmp_path: Path) -> None:
    lines = [{"prompt": prompt, "max_new_tokens": 1500} for prompt in PROMPTS]
    source = write_lines(tmp_path / "in.jsonl", {"prompt": PROMPTS[0], "max_new_tokens": 6}, *lines)
    output = tmp_path / "out.jsonl"
    process = start("generate", "--input", source, "--output", output, "--batch-size", "2")
    until = time.monotonic() + 100
    while not (output.exists() and output.read_text()) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    [line] = parsed(output.read_text())
    assert (line["text"], line["token_ids"]) == parts.reference(PROMPTS[0], 6)
    assert err.decode().splitlines()[-1] == "interrupted: 1 of 6 prompts finished"
    assert "Traceback" not in err.decode()


def test_a_full_disk_is_one_error_line_and_nothing_from_the_interpreter() -> None:
    with open("/dev/full", "w") as full:
        process = start("generate", PROMPTS[0], "--max-new-tokens", "4", stdout=full.fileno())
        _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert err.decode() == (
        "error: standard output cannot be written: No space left on device; free space or redirect it\n"
    )


def test_the_version_and_the_console_script() -> None:
    [script] = entry_points(group="console_scripts", name="outrider")
    loaded: object = script.load()
    assert loaded is main
    assert CliRunner().invoke(main, ["--version"]).stdout == f"outrider, version {__version__}\n"
