"""``outrider generate`` on one prompt: its text, its statistics, its comparison, its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from outrider import Prompt
from outrider.cli import job, main
from tests.cli.support import (
    PROMPTS,
    Command,
    Parts,
    fail_prompt,
    interrupt_after,
    lengths,
    parsed,
    write_lines,
    wrong_token,
)

STATISTICS = ("tokens", "target passes", "mean acceptance length", "acceptance by position", "seconds", "tokens/s")


def keys(text: str) -> list[str]:
    return [line.split(": ")[0] for line in text.splitlines()]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_stdout_holds_the_text_of_the_target_alone_and_nothing_else(
    outrider: Command, parts: Parts, prompt: str
) -> None:
    ran = outrider("generate", prompt, "--max-new-tokens", "24")
    text, _ = parts.reference(prompt, 24)
    assert (ran.code, ran.out) == (0, text + "\n")
    assert keys(ran.err) == [*STATISTICS, "finish reason"]


def test_the_statistics_are_those_of_the_completion(outrider: Command, parts: Parts) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "24")
    line = parsed(outrider("generate", PROMPTS[0], "--max-new-tokens", "24", "--output", "-").out)[0]
    counts = lengths(line)
    shown = dict(row.split(": ") for row in ran.err.splitlines())
    assert shown["tokens"] == "24"
    assert shown["target passes"] == str(len(counts) + 1)  # the prefill is one
    assert shown["mean acceptance length"] == f"{sum(counts) / len(counts):.2f}"
    by_position = [f"{sum(count > place for count in counts) / len(counts):.0%}" for place in range(1, 6)]
    assert shown["acceptance by position"] == " ".join(by_position)


@pytest.mark.parametrize(("typed", "prompt"), [("x = [\n", "x = ["), ("x = [\r\n", "x = ["), ("x = [\n\n", "x = [\n")])
def test_a_dash_reads_the_prompt_from_stdin_without_its_last_line_break(
    outrider: Command, typed: str, prompt: str
) -> None:
    ran = outrider("generate", "-", "--max-new-tokens", "4", stdin=typed.encode())
    assert ran.models[0].asked[0][0] == [Prompt(prompt)]


def test_stdin_that_is_not_utf8_is_refused_before_anything_is_loaded(outrider: Command) -> None:
    ran = outrider("generate", "-", stdin=b"\xff\xfe")
    assert (ran.code, ran.models) == (1, [])
    assert ran.err == "error: standard input is not UTF-8: invalid start byte at byte 0\n"


def test_an_argument_that_is_not_utf8_is_refused_before_anything_is_loaded(outrider: Command) -> None:
    ran = outrider("generate", "x\udcff")
    assert (ran.code, ran.models) == (1, [])
    assert ran.err.startswith("error: PROMPT: character 1 ")


def test_an_output_file_gets_the_line_and_stdout_the_text(outrider: Command, parts: Parts, tmp_path: Path) -> None:
    text, ids = parts.reference(PROMPTS[1], 9)
    ran = outrider("generate", PROMPTS[1], "--max-new-tokens", "9", "--output", tmp_path / "out.jsonl")
    [line] = parsed((tmp_path / "out.jsonl").read_text())
    assert ran.out == text + "\n"
    assert (line["index"], line["token_ids"], line["text"], line["finish_reason"]) == (0, ids, text, "length")


def test_comparing_prints_the_same_text_and_says_so(outrider: Command, parts: Parts) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "24", "--compare")
    assert (ran.code, ran.out) == (0, parts.reference(PROMPTS[0], 24)[0] + "\n")
    shown = dict(row.split(": ") for row in ran.err.splitlines())
    assert shown["same tokens"] == "yes, all 24"
    assert shown["target passes without drafting"] == shown["tokens without drafting"] == "24"
    assert int(shown["target passes"]) < 24
    ratio = float(shown["tokens/s"]) / float(shown["tokens/s without drafting"])
    assert float(shown["speed ratio"].removesuffix("x")) == pytest.approx(ratio, rel=0.05)


def test_comparing_finds_a_draft_that_changes_tokens(outrider: Command) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "24", "--compare", spoil=wrong_token(17))
    assert ran.code == 1
    assert "same tokens: no\n" in ran.err
    assert "error: prompt 0: drafting gave other tokens than the target alone, from token 17 on" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "neither PROMPT nor --input is given"),
        (("x", "--input", "y"), "PROMPT and --input are given"),
        (("x", "--attention", "nothing"), "unknown attention backend 'nothing'; known are: "),
        (("x", "--runner", "nothing"), "unknown runner 'nothing'; known are: "),
        (("x", "--dtype", "int3"), "'int3' is not one of 'auto', 'float32', 'bfloat16', 'float16'"),
        (("x", "--batch-size", "0"), "0 is not in the range x>=1"),
        (("x", "--num-draft-tokens", "-1"), "num_draft_tokens is -1, 0 (no drafting) or more is needed"),
        (("x", "--max-new-tokens", "0"), "'max_new_tokens' is 0, allowed is 1 or more"),
        (("x", "--temperature", "-1", "--top-p", "2"), "'top_p' is 2.0, allowed is above 0, to 1"),
        (("x", "--temperature", "warm"), "'warm' is not a valid float"),
        (("x", "--compare", "--draft", "none"), "--compare needs drafting"),
        (("x", "--compare", "--num-draft-tokens", "0"), "--compare needs drafting"),
        (("x", "--no-such-flag"), "No such option"),
        (("x", "--verifier", "block", "--tree-width", "4"), "verifier block is defined for chains only"),
        (("x", "--verifier", "sure"), "verifier 'sure' is not known; known are: block, exact, rejection, typical"),
        (("x", "--tree-width", "2", "--tree-depth", "2", "--num-draft-tokens", "7"), "at most k + k²(d - 1) = 6"),
        (("x", "--tree", "0,2"), "node 2 has parent 2"),
        (("x", "--tree", "[0,"), "is not JSON"),
        (("x", "--taps", "2,low"), "'taps' is [2, 'low'], expected a list of boundaries"),
        (("x", "--drafter", "ngram", "--tree-width", "2", "--proposal", "sampled"), "3 problems"),
        (("x", "--compare", "--draft", "none", "--drafter", "ngram", "--tree", "0"), "ngram proposes chains only"),
    ],
)
def test_bad_usage_ends_with_2_before_anything_is_loaded(
    outrider: Command, arguments: tuple[str, ...], message: str
) -> None:
    ran = outrider("generate", *arguments)
    assert (ran.code, ran.out, ran.models) == (2, "", [])
    assert message in ran.err.replace("\n", " ")


def test_a_prompt_that_fails_ends_with_1_and_one_line(outrider: Command, parts: Parts) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "8", spoil=fail_prompt(0))
    assert (ran.code, ran.out) == (1, parts.reference(PROMPTS[0], 8)[0] + "\n")
    assert ran.err.splitlines()[-1] == "error: NaN in the logits"
    assert "Traceback" not in ran.err


def test_a_prompt_longer_than_the_context_ends_with_1(outrider: Command) -> None:
    ran = outrider("generate", "x = 1\n" * 40, "--max-length", "32")
    assert ran.code == 1
    assert "error: " in ran.err
    assert "32" in ran.err


def test_ctrl_c_keeps_the_text_so_far_and_ends_with_130(outrider: Command, parts: Parts) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "24", spoil=interrupt_after(deltas=3))
    assert ran.code == 130
    assert ran.err == "interrupted: 0 of 1 prompts finished\n"
    kept = ran.out.removesuffix("\n")
    whole = parts.reference(PROMPTS[0], 24)[0]
    assert 0 < len(kept) < len(whole)
    assert whole.startswith(kept)


def test_text_is_written_delta_by_delta(outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(job, "write_out", written.append)
    whole = outrider("generate", PROMPTS[0], "--max-new-tokens", "24")
    rounds = int(dict(row.split(": ") for row in whole.err.splitlines())["target passes"])
    assert len(written) > rounds // 2  # a round may end inside a character, and then shows nothing


def test_comparing_needs_a_draft_that_was_loaded(outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = outrider("generate", PROMPTS[0], "--compare", drafter=False)
    assert ran.code == 2
    assert "error: --compare is asked, but nothing drafts; name a draft with --draft" in ran.err


def test_nothing_drafted_is_said_and_shows_no_acceptance(outrider: Command, parts: Parts) -> None:
    ran = outrider("generate", PROMPTS[0], "--max-new-tokens", "8", drafter=False)
    assert (ran.code, ran.out) == (0, parts.reference(PROMPTS[0], 8)[0] + "\n")
    assert ran.err.startswith("note: nothing drafts, the target decodes alone\n")
    assert "acceptance" not in ran.err


def test_an_option_that_the_loaded_draft_cannot_honour_ends_with_2(
    outrider: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What only the checkpoint can tell is told by `load` itself, before a token is generated."""
    monkeypatch.undo()
    for arguments, message in (
        (("--tree-width", "1537"), "width 1537 is more than the 1536 tokens of the draft's vocabulary"),
        (("--hot-tokens", write_lines(tmp_path / "hot.json", [3, 4])), "brings its own head of 1536 ids"),
    ):
        result = CliRunner().invoke(main, ["generate", PROMPTS[0], *map(str, arguments)])
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_comparing_asks_only_those_for_equal_tokens_whose_verifier_keeps_them(
    outrider: Command, tmp_path: Path
) -> None:
    """The tokens of the sampled prompt are another draw; those of the greedy ones are compared as ever."""
    lines = [{"prompt": PROMPTS[0]}, {"prompt": PROMPTS[1], "temperature": 1.0}]
    source = write_lines(tmp_path / "in.jsonl", *lines)
    arguments = ("generate", "--input", source, "--max-new-tokens", "24", "--compare")
    exact = outrider(*arguments)
    assert "same tokens: yes, all 48\n" in exact.err
    for verifier in ("rejection", "block", "typical"):
        ran = outrider(*arguments, "--verifier", verifier)
        assert ran.code == 0
        assert "same tokens: yes, all 24; not compared for 1 sampled prompt: the verifier does not keep them" in ran.err
        assert outrider(*arguments, "--verifier", verifier, spoil=wrong_token(17)).code == 1
    alone = outrider("generate", PROMPTS[1], "--temperature", "1", "--verifier", "rejection", "--compare")
    assert "same tokens: not compared for 1 sampled prompt" in alone.err


def test_log_probabilities_stand_in_the_lines_that_ask_for_them(
    outrider: Command, parts: Parts, tmp_path: Path
) -> None:
    lines = [{"prompt": PROMPTS[0], "logprobs": 2}, {"prompt": PROMPTS[1]}, {"prompt": PROMPTS[1], "logprobs": 0}]
    ran = outrider("generate", "--input", write_lines(tmp_path / "in.jsonl", *lines), "--max-new-tokens", "9")
    first, second, third = parsed(ran.out)
    assert "logprobs" not in second
    entries = cast("list[dict[str, object]]", first["logprobs"])
    tops = [cast("list[tuple[int, float]]", entry["top"]) for entry in entries]
    # Greedy: the token is the most probable one.
    assert [top[0][0] for top in tops] == first["token_ids"]
    assert [entry["logprob"] for entry in entries] == [top[0][1] for top in tops]
    assert all(len(top) == 2 and top[0][1] >= top[1][1] for top in tops)
    bare = cast("list[dict[str, object]]", third["logprobs"])
    assert [set(entry) for entry in bare] == [{"logprob", "top"}] * 9
    assert all(entry["top"] == [] for entry in bare)
