"""``outrider generate`` on a file of prompts: order, overrides, faults, interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from outrider import Prompt, RequestSettings
from outrider.cli import main
from outrider.cli.jsonl import ResultFile, read_lines
from tests.cli.support import PROMPTS, Command, Parts, fail_prompt, interrupt_after, lengths, parsed, write_lines

BUDGETS = (14, 3, 9, 1, 6)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five prompts that finish in another order than they are given."""
    lines = [{"prompt": p, "max_new_tokens": n} for p, n in zip(PROMPTS, BUDGETS, strict=True)]
    return write_lines(tmp_path / "in.jsonl", *lines)


@pytest.mark.parametrize("batch_size", ["1", "2", "8"])
def test_lines_come_in_input_order_with_the_tokens_of_the_target_alone(
    outrider: Command, parts: Parts, source: Path, batch_size: str
) -> None:
    ran = outrider("generate", "--input", source, "--batch-size", batch_size)
    lines = parsed(ran.out)
    assert ran.code == 0
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(set(line) == {"index", "token_ids", "text", "finish_reason", "accept_lengths"} for line in lines)
    for line, prompt, budget in zip(lines, PROMPTS, BUDGETS, strict=True):
        assert (line["text"], line["token_ids"]) == parts.reference(prompt, budget)
        # The first token is the prefill's; the last round may be cut, its length is not.
        assert sum(lengths(line)) + 1 >= budget
        assert sum(lengths(line)[:-1]) + 1 < max(budget, 2)


def test_token_ids_and_stdin_do_as_well_and_blank_lines_do_not_count(outrider: Command, parts: Parts) -> None:
    ids = parts.target.codec.encode(PROMPTS[0]) if parts.target.codec is not None else []
    stdin = f'\n{{"token_ids": {json.dumps(list(ids))}}}\n  \n{{"prompt": "x = ["}}\n'
    ran = outrider("generate", "--input", "-", "--max-new-tokens", "5", stdin=stdin)
    assert [(line["index"], line["text"]) for line in parsed(ran.out)] == [
        (0, parts.reference(PROMPTS[0], 5)[0]),
        (1, parts.reference("x = [", 5)[0]),
    ]


def test_a_line_overrides_a_flag_and_keeps_the_others(tmp_path: Path) -> None:
    base = RequestSettings(max_new_tokens=5, temperature=0.5, seed=3)
    path = write_lines(tmp_path / "in.jsonl", {"prompt": "a", "temperature": 1}, {"prompt": "b"})
    assert [line.prompt for line in read_lines(str(path), base)] == [
        Prompt("a", RequestSettings(max_new_tokens=5, temperature=1.0, seed=3)),
        Prompt("b"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": "a"', "not JSON: Expecting ',' delimiter at column 15"),
        ("[1]", 'expected a JSON object such as {"prompt": "..."}, found [1]'),
        ({}, "either 'prompt' or 'token_ids' is needed, found neither"),
        ({"prompt": "a", "token_ids": [1]}, "either 'prompt' or 'token_ids' is needed, found both"),
        ({"prompt": 3}, "'prompt' is 3, expected a string"),
        ({"token_ids": "a"}, "'token_ids' is \"a\", expected a list of whole numbers"),
        ({"token_ids": [1, True]}, "'token_ids'[1] is true, expected a whole number"),
        (
            {"prompt": "a", "temprature": 1, "n": 2},
            "unknown keys 'n', 'temprature'; allowed are prompt, token_ids, images, videos, max",
        ),
        ({"prompt": "a", "temperature": "hot"}, "'temperature' is 'hot', expected a number"),
        ({"prompt": "a", "max_new_tokens": 0}, "'max_new_tokens' is 0, allowed is 1 or more"),
        ('{"prompt": "a", "prompt": "b"}', "keys 'prompt' occur more than once"),
        ('{"prompt": "a", "temperature": NaN}', "NaN is not JSON"),
        ('{"prompt": "a", "temperature": 1e999}', "'temperature' is inf, allowed is 0 or more"),
        (
            f'{{"prompt": "a", "top_k": {10**30}, "temperature": {10**400}}}',
            "'top_k' is 1000000000000000000000000000000",
        ),
        (f'{{"token_ids": [{"9" * 5000}]}}', "not JSON that can be read: Exceeds the limit"),
        ("[" * 100_000, "not JSON that can be read: nested too deeply"),
        ('{"prompt": "\\ud800"}', "'prompt': character 0 is half of a surrogate pair"),
    ],
)
def test_a_malformed_line_is_named_with_its_file_its_number_and_why(
    outrider: Command, tmp_path: Path, line: object, why: str
) -> None:
    path = write_lines(tmp_path / "in.jsonl", {"prompt": "a"}, "", line)
    ran = outrider("generate", "--input", path, "--output", tmp_path / "out.jsonl")
    assert (ran.code, ran.models) == (1, [])
    assert ran.err.startswith(f"error: {path}: line 3: ")
    assert why in ran.err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_line_that_is_not_utf8_is_malformed(outrider: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "\xff"}\n')
    ran = outrider("generate", "--input", path)
    assert ran.err == f"error: {path}: line 2: not UTF-8: invalid start byte at byte 12 of the line\n"


def test_all_malformed_lines_are_named_at_once(outrider: Command, tmp_path: Path) -> None:
    ran = outrider("generate", "--input", write_lines(tmp_path / "in.jsonl", "{", {"prompt": "a"}, *["[]"] * 20))
    assert ran.code == 1
    assert ran.err.startswith("error: 21 malformed lines; mend them, or run the others with --keep-going\n")
    assert [f"line {number}: " in ran.err for number in (1, 2, 3, 11, 12)] == [True, False, True, True, False]
    assert ran.err.endswith("and 11 more\n")


def test_keep_going_writes_a_line_for_each_fault_in_its_place(outrider: Command, parts: Parts, tmp_path: Path) -> None:
    too_long, foreign = {"token_ids": [5] * 3000}, {"token_ids": [10**30]}
    lines = ("{", {"prompt": PROMPTS[0]}, too_long, {"prompt": 1}, {"prompt": PROMPTS[4]}, foreign)
    path, output = write_lines(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    ran = outrider("generate", "--input", path, "--output", output, "--keep-going", "--max-new-tokens", "6")
    written = parsed(output.read_text())
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "error: 4 of 6 prompts failed; their result lines have an 'error'"
    assert [line["index"] for line in written] == [0, 1, 2, 3, 4, 5]
    assert [line["finish_reason"] for line in written] == ["error", "length", "error", "error", "length", "error"]
    assert [("error" in line) for line in written] == [True, False, True, True, False, True]
    assert (written[1]["text"], written[4]["text"]) == tuple(parts.reference(PROMPTS[i], 6)[0] for i in (0, 4))
    assert str(written[3]["error"]).startswith(f"{path}: line 4: 'prompt' is 1")


def test_keep_going_with_nothing_but_faults(outrider: Command, tmp_path: Path) -> None:
    ran = outrider("generate", "--input", write_lines(tmp_path / "in.jsonl", "{"), "--keep-going")
    assert ran.code == 1
    assert [line["finish_reason"] for line in parsed(ran.out)] == ["error"]
    assert ran.err == "error: 1 of 1 prompts failed; their result lines have an 'error'\n"


def test_a_failure_stops_the_run_and_what_finished_is_written(outrider: Command, source: Path) -> None:
    ran = outrider("generate", "--input", source, "--batch-size", "1", spoil=fail_prompt(2))
    assert ran.code == 1
    assert [line["index"] for line in parsed(ran.out)] == [0, 1]
    assert ran.err.splitlines()[-1] == f"error: {source}: line 3: NaN in the logits"


def test_keep_going_passes_a_failure_of_the_model(outrider: Command, source: Path) -> None:
    ran = outrider("generate", "--input", source, "--keep-going", spoil=fail_prompt(2))
    lines = parsed(ran.out)
    assert ran.code == 1
    assert [line["finish_reason"] for line in lines] == ["length", "length", "error", "length", "length"]
    assert lines[2]["error"] == "NaN in the logits"


@pytest.mark.parametrize("finished", [1, 2, 4])
def test_ctrl_c_keeps_what_finished_in_order(outrider: Command, parts: Parts, source: Path, finished: int) -> None:
    """All five run at once and finish out of order: what finished is written though others before it did not."""
    ran = outrider("generate", "--input", source, spoil=interrupt_after(prompts=finished))
    lines = parsed(ran.out)
    indices = [int(str(line["index"])) for line in lines]
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == f"interrupted: {finished} of 5 prompts finished"
    assert indices == sorted(indices)
    assert len(indices) == finished
    for index, line in zip(indices, lines, strict=True):
        assert (line["text"], line["token_ids"]) == parts.reference(PROMPTS[index], BUDGETS[index])


def test_comparing_a_file_writes_each_line_once(outrider: Command, source: Path) -> None:
    ran = outrider("generate", "--input", source, "--compare")
    assert ran.code == 0
    assert [line["index"] for line in parsed(ran.out)] == [0, 1, 2, 3, 4]
    assert f"same tokens: yes, all {sum(BUDGETS)}\n" in ran.err


def test_an_output_that_cannot_be_opened_fails_before_anything_is_loaded(
    outrider: Command, source: Path, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "out.jsonl"):
        ran = outrider("generate", "--input", source, "--output", path)
        assert (ran.code, ran.models) == (1, [])
        assert ran.err.startswith(f"error: output {path} cannot be opened: ")


def test_an_output_that_fills_up_ends_with_1(outrider: Command, source: Path) -> None:
    ran = outrider("generate", "--input", source, "--output", "/dev/full")
    assert ran.code == 1
    assert "error: output /dev/full cannot be written: No space left on device" in ran.err


def test_earlier_results_stand_until_there_are_new_ones(source: Path, tmp_path: Path) -> None:
    """A call that fails while it loads must not cost what an earlier one wrote."""
    output = tmp_path / "out.jsonl"
    output.write_text("earlier\n")
    ran = CliRunner().invoke(
        main, ["generate", "--input", str(source), "--output", str(output), "--target", str(tmp_path)]
    )
    assert (ran.exit_code, output.read_text()) == (1, "earlier\n")


@pytest.mark.parametrize("earlier", ["", "earlier, and longer than what comes" * 1000])
def test_earlier_results_are_replaced(outrider: Command, source: Path, tmp_path: Path, earlier: str) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text(earlier)
    ran = outrider("generate", "--input", source, "--output", output)
    assert (ran.code, [line["index"] for line in parsed(output.read_text())]) == (0, [0, 1, 2, 3, 4])


def test_the_input_is_not_overwritten(outrider: Command, source: Path) -> None:
    before = source.read_text()
    ran = outrider("generate", "--input", source, "--output", source)
    assert (ran.code, source.read_text(), ran.models) == (2, before, [])


def test_an_input_that_cannot_be_read_is_named(outrider: Command, tmp_path: Path) -> None:
    ran = outrider("generate", "--input", tmp_path / "none.jsonl")
    assert ran.code == 1
    assert ran.err.startswith(f"error: input {tmp_path / 'none.jsonl'} cannot be read: No such file")


def test_a_line_is_on_disk_as_soon_as_those_before_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(str(path)) as results:
        seen: list[list[object]] = []
        for index in (2, 0, 4, 1):
            results.add(index, {"index": index})
            seen.append([line["index"] for line in parsed(path.read_text())])
        results.release()
    assert seen == [[], [0], [0], [0, 1, 2]]
    assert [line["index"] for line in parsed(path.read_text())] == [0, 1, 2, 4]
