"""Images on the command line: ``--image`` for one prompt, ``"images"`` in lines, and what becomes of bad ones."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve

from outrider import Prompt
from outrider.cli.generate import generate_command
from outrider.generation.prompts import DEFAULT_IMAGE_PAIR
from tests.adapters.eagle.test_media import head_for_media
from tests.adapters.media.models import qwen
from tests.cli.support import Command, Parts, parsed, write_lines
from tests.support.toy_images import toy_image, with_toy_images

ASK = "def main():<image>"
TOKENS = ("--max-new-tokens", "6")


@pytest.fixture
def sighted(outrider: Command) -> Command:
    """The command over the trained pair, made to read toy images."""
    parts = outrider.parts
    target = with_toy_images(parts.target, 4000)
    return evolve(outrider, parts=evolve(parts, target=target))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, seed in (("one.toy", 1), ("two.toy", 2)):
        (tmp_path / name).write_bytes(toy_image(2, 2, seed))
    (tmp_path / "bad.toy").write_bytes(b"TOYx")
    return tmp_path


def reference(parts: Parts, prompt: Prompt) -> list[int]:
    return parts.reference(prompt, 6)[1]


def test_each_image_goes_to_the_one_prompt(sighted: Command, folder: Path) -> None:
    one, two = str(folder / "one.toy"), str(folder / "two.toy")
    text = "<image>x<image>"
    prompt = Prompt(text, images=(one, two))
    ran = sighted("generate", "--image", one, text, "--image", two, "--output", "-", *TOKENS)
    assert ran.code == 0, ran.err
    assert parsed(ran.out)[0]["token_ids"] == reference(sighted.parts, prompt)
    swapped = sighted("generate", "--image", two, "--image", one, text, "--output", "-", *TOKENS)
    assert parsed(swapped.out)[0]["token_ids"] != parsed(ran.out)[0]["token_ids"]


def test_a_question_goes_through_the_template(sighted: Command, folder: Path) -> None:
    one = str(folder / "one.toy")
    ran = sighted("generate", "--image", one, "What do you see?", "--compare", "--output", "-", *TOKENS)
    assert ran.code == 0, ran.err
    rendered = Prompt("user: <image> What do you see? you: ", images=(one,))
    assert parsed(ran.out)[0]["token_ids"] == reference(sighted.parts, rendered)


def test_lines_name_images_from_the_folder_of_the_file(sighted: Command, folder: Path) -> None:
    lines = [
        {"prompt": ASK, "images": ["one.toy"]},
        {"prompt": "x = ["},
        {"prompt": ASK, "images": [str(folder / "two.toy")]},
    ]
    ran = sighted("generate", "--input", write_lines(folder / "in.jsonl", *lines), *TOKENS)
    assert ran.code == 0, ran.err
    prompts = [Prompt(ASK, images=(folder / "one.toy",)), Prompt("x = ["), Prompt(ASK, images=(folder / "two.toy",))]
    assert [line["token_ids"] for line in parsed(ran.out)] == [reference(sighted.parts, each) for each in prompts]


def test_lines_of_standard_input_name_them_from_the_working_directory(
    sighted: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ran = sighted("generate", "--input", "-", *TOKENS, stdin=json.dumps({"prompt": ASK, "images": ["one.toy"]}))
    assert parsed(ran.out)[0]["token_ids"] == reference(sighted.parts, Prompt(ASK, images=("one.toy",)))


def test_a_bad_image_fails_its_own_line(sighted: Command, folder: Path) -> None:
    lines = [
        {"prompt": ASK, "images": ["one.toy"]},
        {"prompt": ASK, "images": ["gone.toy"]},
        {"prompt": 7},
        {"prompt": ASK, "images": ["bad.toy"]},
        {"prompt": ASK, "images": ["one.toy", "two.toy"]},
        {"prompt": "x = ["},
    ]
    path = write_lines(folder / "in.jsonl", *lines)
    ran = sighted("generate", "--input", path, "--keep-going", *TOKENS)
    found = parsed(ran.out)
    assert ran.code == 1
    assert [line["finish_reason"] for line in found] == ["length", *["error"] * 4, "length"]
    says = [
        f"prompt 1 (images {folder / 'gone.toy'}): its images cannot be read: image 1 of 1",
        f"{path}: line 3: 'prompt' is 7",
        f"prompt 3 (images {folder / 'bad.toy'}): image 1 of 1 is corrupt: 4 bytes",
        f"prompt 4 (images {folder / 'one.toy'}, {folder / 'two.toy'}): 1 placeholders, 2 images",
    ]
    for line, said in zip(found[1:5], says, strict=True):
        assert cast("str", line["error"]).startswith(said)


def test_a_missing_image_of_the_prompt_is_a_failure(sighted: Command, folder: Path) -> None:
    ran = sighted("generate", "--image", folder / "gone.toy", ASK)
    assert ran.code == 1
    assert "target passes" not in ran.err, "nothing ran, so there is nothing to count"
    gone = folder / "gone.toy"
    assert ran.err.splitlines()[-1] == (
        f"error: PROMPT (images {gone}): its images cannot be read: image 1 of 1, '{gone}': No such file or directory; give "
        "the path of an image file"
    )


def test_of_prompts_that_were_all_refused_there_are_no_statistics(sighted: Command, folder: Path) -> None:
    path = write_lines(folder / "in.jsonl", *[{"prompt": ASK, "images": ["gone.toy"]}] * 2)
    for arguments in (("--image", folder / "gone.toy", ASK), ("--input", path, "--keep-going")):
        for compare in ((), ("--compare",)):
            ran = sighted("generate", *arguments, *compare)
            assert ran.code == 1
            assert len(ran.err.splitlines()) == 1, ran.err
            assert "" not in ran.out.split("\n")[:-1], "no empty line where text would stand"
    lines = [{"prompt": ASK, "images": ["gone.toy"]}, {"prompt": ASK, "images": ["one.toy"]}]
    ran = sighted("generate", "--input", write_lines(folder / "in.jsonl", *lines), "--keep-going", *TOKENS)
    assert "target passes: " in ran.err


def test_a_name_that_is_not_unicode_is_told_in_a_line_that_is(sighted: Command, folder: Path) -> None:
    """JSON can spell what no text can hold; the line with the error is written all the same."""
    path, out = folder / "in.jsonl", folder / "out.jsonl"
    path.write_text(
        '{"prompt": "<image>", "images": ["\\udcff.png"]}\n{"prompt": "<image>", "images": ["\\ud800.png"]}\n'
    )
    ran = sighted("generate", "--input", path, "--keep-going", "--output", out, *TOKENS)
    assert ran.code == 1
    errors = [cast("str", line["error"]) for line in parsed(out.read_text())]
    assert "udcff.png': No such file or directory" in errors[0]
    assert "ud800.png': 'utf-8' codec can't encode character" in errors[1]


def test_an_image_to_a_model_of_text(outrider: Command, folder: Path) -> None:
    ran = outrider("generate", "--image", folder / "one.toy", "x", "--target", "tiny")
    assert ran.code == 1
    assert "1 image is given, but tiny-llama reads text only" in ran.err


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("one.toy", "'images' is \"one.toy\", expected a list of paths"),
        ([3], "'images'[0] is 3, expected the path of an image file"),
        (["one.toy", ""], "'images'[1] is \"\", expected the path of an image file"),
        (None, "'images' is null, expected a list of paths"),
    ],
)
def test_a_malformed_list_of_images(outrider: Command, tmp_path: Path, value: object, why: str) -> None:
    ran = outrider("generate", "--input", write_lines(tmp_path / "in.jsonl", {"prompt": "a", "images": value}))
    assert (ran.code, ran.models) == (1, [])
    assert f"line 1: {why}" in ran.err


def test_images_beside_a_file_of_prompts_are_bad_usage(outrider: Command, tmp_path: Path) -> None:
    ran = outrider("generate", "--image", "a.png", "--input", write_lines(tmp_path / "in.jsonl", {"prompt": "a"}))
    assert (ran.code, ran.models) == (2, [])
    assert "--image is given beside --input" in ran.err


def test_inspect_says_what_a_draft_sees_of_a_target_that_reads_images(outrider: Command, tmp_path: Path) -> None:
    target, draft = qwen().save(tmp_path / "target"), head_for_media().write(tmp_path / "draft")
    ran = outrider("inspect", draft, "--target", target)
    assert ran.code == 0, ran.out
    bound = next(line for line in ran.out.splitlines() if line.startswith("binds to"))
    assert bound == (
        "binds to: target: yes, taps boundary 0, boundary 1, boundary 2, at images the target's merged embedding, positions "
        "sequence indices, 1 axis"
    )
    ran = outrider("inspect", draft, target)
    assert "at images: the target's merged embedding" in ran.out
    assert "rope: default, theta 10000, axes 1/1/2" in ran.out
    assert "tokens per image: " in ran.out


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (("--image", "one.toy", "x"), DEFAULT_IMAGE_PAIR),
        (("--image", "one.toy", "x", "--target", "tiny"), "tiny"),
        (("x",), None),
        (("--input", "in.jsonl"), DEFAULT_IMAGE_PAIR),
    ],
)
def test_the_default_target_of_images(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], target: str | None
) -> None:
    asked: list[object] = []

    class EnoughError(Exception):
        pass

    def load(name: object, *_: object, **__: object) -> None:
        asked.append(name)
        raise EnoughError

    monkeypatch.chdir(folder)
    write_lines(folder / "in.jsonl", {"prompt": "a"}, {"prompt": "a", "images": ["one.toy"]})
    monkeypatch.setattr(importlib.import_module("outrider.cli.generate"), "load", load)
    with pytest.raises(EnoughError):
        generate_command.main(list(arguments), standalone_mode=False)
    assert asked == [target]
