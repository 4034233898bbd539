"""Videos on the command line: ``--frame`` and ``--fps`` for one prompt, ``"videos"`` in lines, and what becomes of bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner, Result

from outrider.cli import main
from tests.adapters.media.models import HubModel, load, media_of, qwen
from tests.cli.support import Command, parsed, write_lines
from tests.generation.test_videos import ASK, SHOWN

NOTHING: list[str] = []
SETTINGS = ("--draft", "none", "--max-length", "96", "--max-new-tokens", "6", "--ignore-eos")


@pytest.fixture(scope="module")
def hub() -> HubModel:
    return qwen()


@pytest.fixture(scope="module")
def target(hub: HubModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hub.save(tmp_path_factory.mktemp("target"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, data in enumerate(SHOWN.frames):
        (tmp_path / f"{number}.png").write_bytes(data)
    return tmp_path


@pytest.fixture(scope="module")
def right(hub: HubModel, target: Path) -> list[int]:
    ids = media_of(load(target)).prepare(ASK, [], videos=[SHOWN]).token_ids
    return hub.generate(ids, [], 6, [SHOWN])


def run(target: Path, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["generate", "--target", str(target), *map(str, arguments), *SETTINGS])


def test_frames_of_the_one_prompt(target: Path, folder: Path, right: list[int]) -> None:
    frames = [part for number in range(5) for part in ("--frame", folder / f"{number}.png")]
    ran = run(target, ASK, *frames, "--fps", "2", "--output", "-")
    assert ran.exit_code == 0, ran.output
    assert parsed(ran.stdout)[0]["token_ids"] == right
    slower = run(target, ASK, *frames, "--fps", "0.5", "--output", "-")
    assert parsed(slower.stdout)[0]["token_ids"] != right


def test_a_bad_video_fails_its_own_line(target: Path, folder: Path, right: list[int]) -> None:
    paths = [f"{number}.png" for number in range(5)]
    good = {"prompt": ASK, "videos": [{"frames": paths, "fps": 2}]}
    lines = [
        good,
        {"prompt": ASK, "videos": [{"frames": [*paths, "gone.png"], "fps": 2}]},
        {"prompt": ASK, "videos": [{"frames": paths, "fps": 0}]},
        {"prompt": ASK, "videos": [{"frames": paths}]},
        {"prompt": "w30 w31"},
        good,
    ]
    path = write_lines(folder / "in.jsonl", *lines)
    ran = run(target, "--input", path, "--keep-going")
    found = parsed(ran.stdout)
    assert ran.exit_code == 1
    assert [found[place]["token_ids"] for place in (0, 5)] == [right] * 2
    assert [line["finish_reason"] for line in found] == ["length", *["error"] * 3, "length", "length"]
    says = [
        f"prompt 1 (videos of 6 frames {folder / '0.png'} to {folder / 'gone.png'}): its videos cannot be read: frame 6 of 6 "
        "of video 1 of 1",
        f"{path}: line 3: 'videos'[0]['fps'] is 0, expected a number above 0",
        f"{path}: line 4: 'videos'[0] is ",
    ]
    for line, said in zip(found[1:4], says, strict=True):
        assert cast("str", line["error"]).startswith(said)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a.png", '\'videos\' is "a.png", expected a list of {"frames": [paths], "fps": number}'),
        ([["a.png"]], '\'videos\'[0] is ["a.png"], expected {"frames"'),
        ([{"frames": ["a.png"], "fps": "2"}], "'videos'[0]['fps'] is \"2\", expected a number"),
        ([{"frames": ["a.png"], "fps": 0}], "'videos'[0]['fps'] is 0, expected a number above 0"),
        ([{"frames": ["a.png"], "fps": -2.5}], "'videos'[0]['fps'] is -2.5, expected a number above 0"),
        ([{"frames": ["a.png"], "fps": 1e300 * 1e300}], "Infinity is not JSON"),
        ([{"frames": NOTHING, "fps": 2}], "'videos'[0]['frames'] is [], expected at least one path"),
        ([{"frames": ["a.png"], "fps": True}], "'videos'[0]['fps'] is true, expected a number"),
        ([{"frames": "a.png", "fps": 2}], "'videos'[0]['frames'] is \"a.png\", expected a list of paths"),
        ([{"frames": ["a.png", 3], "fps": 2}], "'videos'[0]['frames'][1] is 3, expected the path of an image file"),
        ([{"frames": ["a.png"], "fps": 2, "name": 1}], "'videos'[0] is {"),
    ],
)
def test_a_malformed_list_of_videos(outrider: Command, tmp_path: Path, value: object, why: str) -> None:
    ran = outrider("generate", "--input", write_lines(tmp_path / "in.jsonl", {"prompt": "a", "videos": value}))
    assert (ran.code, ran.models) == (1, [])
    assert f"line 1: {why}" in ran.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("x", "--frame", "a.png"), "a video needs --fps as well"),
        (("x", "--fps", "2"), "a video needs --frame as well"),
        *(
            (("x", "--frame", "a.png", "--fps", fps), f"--fps is {fps}, allowed are numbers above 0")
            for fps in ("0", "-1", "nan", "inf")
        ),
        (("--input", "in.jsonl", "--frame", "a.png", "--fps", "2"), "--frame or --fps is given beside --input"),
    ],
)
def test_half_a_video_is_bad_usage(outrider: Command, arguments: tuple[str, ...], why: str) -> None:
    ran = outrider("generate", *arguments)
    assert (ran.code, ran.models) == (2, [])
    assert why in " ".join(ran.err.split())


def test_a_video_to_models_that_read_none(outrider: Command, folder: Path) -> None:
    ran = outrider("generate", "x", "--frame", folder / "0.png", "--fps", "1", "--target", "tiny")
    assert ran.code == 1
    assert "1 video is given, but tiny-llama reads text only; leave them out, or use a Qwen2.5-VL checkpoint" in ran.err
    seeing = CliRunner().invoke(main, ["generate", "x", "--frame", str(folder / "0.png"), "--fps", "1"])
    assert seeing.exit_code == 1
    assert "1 video is given, but tiny-llava reads no videos; give frames as images" in seeing.stderr
