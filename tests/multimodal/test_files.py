"""Image files of every kind, by Python and by the shell: what can be read is read right, what cannot fails its own request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve, frozen
from click.testing import CliRunner
from PIL import Image

from examples.digits.questions import SEE
from outrider import registry
from outrider.errors import ContextLengthError, InputError, OutriderError
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.loop.build import EngineOptions
from tests.cli.support import Command, Parts, parsed, write_lines
from tests.multimodal.pair import DRAFTS, IMAGES, about, image, model_of, right_answer, seeing_pair, texts_of

ROW = "73142"
ASK = SEE.wordings[0]


def picture() -> Image.Image:
    return Image.open(IMAGES[ROW]).convert("L")


def saved(made: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = BytesIO()
    made.save(buffer, file_format, **options)
    return buffer.getvalue()


def sixteen_bit() -> bytes:
    values = picture().convert("I").point(lambda value: value * 257)
    return saved(values.convert("I;16"), "PNG")


def see_through() -> bytes:
    """The ink is opaque, the paper transparent where it is lighter: on white it looks as it did."""
    made = Image.new("RGBA", picture().size)
    made.putdata([(0, 0, 0, 255 - value) for value in picture().tobytes()])
    return saved(made, "PNG")


def turned() -> bytes:
    """Stored on its side, with the tag that says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(picture().transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


def animated(file_format: str) -> bytes:
    others = [Image.open(IMAGES[row]).convert("L") for row in ("8", "9371")]
    return saved(picture(), file_format, save_all=True, append_images=others, duration=40)


KINDS: Mapping[str, Callable[[], bytes]] = {
    "16-bit grey": sixteen_bit,
    "transparent": see_through,
    "turned": turned,
    "JPEG": lambda: saved(picture(), "JPEG", quality=85),
    "WebP": lambda: saved(picture().convert("RGB"), "WEBP", quality=90),
    "GIF": lambda: animated("GIF"),
    "animated WebP": lambda: animated("WEBP"),
    "animated PNG": lambda: animated("PNG"),
    "BMP": lambda: saved(picture(), "BMP"),
    "TIFF": lambda: saved(picture().convert("CMYK"), "TIFF"),
    "large": lambda: saved(picture().resize((1500, 1500), Image.Resampling.BICUBIC), "JPEG"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_read_right(kind: str) -> None:
    assert model_of(seeing_pair()).generate(ASK, images=[KINDS[kind]()]).text == right_answer(SEE, ROW)


def test_of_a_turned_picture_the_tag_counts() -> None:
    untagged = saved(Image.open(BytesIO(turned())), "BMP")
    assert model_of(seeing_pair()).generate(ASK, images=[untagged]).text != right_answer(SEE, ROW)


@pytest.mark.parametrize("size", [(1, 1), (10000, 10), (3, 900)])
def test_odd_sizes_are_answered_as_by_the_target_alone(size: tuple[int, int]) -> None:
    prompts = [Prompt(ASK, images=[saved(Image.new("RGB", size, colour), "PNG")]) for colour in ("white", "black")]
    prompts.append(about(ROW))
    found = texts_of(model_of(seeing_pair()), prompts)
    assert found == texts_of(model_of(seeing_pair(), "off"), prompts)


# -- files that cannot be used -----------------------------------------------------------------------------------------


@frozen
class Bad:
    """A request that cannot be answered: the files it names, and what is said of it."""

    says: str
    files: tuple[str, ...] = ("bad.png",)
    data: bytes | None = None
    prompt: str = ASK
    error: type[OutriderError] = InputError


BAD: Mapping[str, Bad] = {
    "missing": Bad("image 1 of 1, '{folder}/gone.png': No such file or directory", ("gone.png",)),
    "zero bytes": Bad("image 1 of 1 is empty (0 bytes)", data=b""),
    "cut off": Bad("image 1 of 1 is corrupt or truncated, 300 bytes", data=image(ROW)[:300]),
    "corrupt": Bad("image 1 of 1 is corrupt", data=image(ROW)[:200] + bytes(60) + image(ROW)[260:]),
    "a text": Bad(
        "image 1 of 1 is no image that can be read: 12 bytes that begin with 57 68 61 74", data=b"What is this"
    ),
    "one of two": Bad(
        "image 2 of 2 is no image that can be read: 3 bytes", ("good.png", "bad.png"), b"GIF", "Compare the images."
    ),
    "fewer": Bad(
        "the prompt has 2 image placeholders (token id 3) and 1 image was given",
        ("good.png",),
        prompt="<image><image> What do you see?",
    ),
    "more": Bad(
        "the prompt has 1 image placeholder (token id 3) and 2 images were given",
        ("good.png", "good.png"),
        prompt="<image> What do you see?",
    ),
    "none": Bad("the prompt has 1 image placeholder (token id 3) and 0 images were given", (), prompt="<image> What?"),
    "too many for the context": Bad(
        "the prompt has 208 tokens, 192 of them for 3 images (64 × 64 pixels: 64, 64 × 64 pixels: 64, 64 × 64 pixels: 64), "
        "at most 159 are allowed",
        ("good.png",) * 3,
        error=ContextLengthError,
    ),
}
LENGTH = 160


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.png").write_bytes(image(ROW))
    return tmp_path


def written(bad: Bad, folder: Path) -> list[Path]:
    """The paths of its files, which now lie in ``folder``."""
    if bad.data is not None:
        (folder / "bad.png").write_bytes(bad.data)
    return [folder / name for name in bad.files]


def starts(name: str, files: list[Path]) -> str:
    """How everything begins that is said of images."""
    return f"{name} (images {', '.join(map(str, files))}): " if files else f"{name}: "


@pytest.mark.parametrize("kind", BAD)
def test_python_names_the_request_and_the_numbers(kind: str, folder: Path) -> None:
    bad = BAD[kind]
    files = written(bad, folder)
    pair = seeing_pair()
    model = SpeculativeModel(
        pair.target,
        DRAFTS["chain"](pair.draft),
        attention=registry.attention("sdpa"),
        runner=lambda: registry.runner("eager"),
        options=EngineOptions(max_batch_size=2, max_length=LENGTH),
    )
    asked = [about(ROW), Prompt("Hello."), Prompt(bad.prompt, images=files), about("96")]
    result = model.generate_batch(asked, raise_errors=False)
    assert [each.finish_reason for each in result.completions] == ["eos", "eos", "error", "eos"]
    assert [result.completions[place].text for place in (0, 3)] == [right_answer(SEE, row) for row in (ROW, "96")]
    error = result.completions[2].error
    assert type(error) is bad.error
    assert str(error).startswith(starts("prompt 2", files))
    assert bad.says.format(folder=folder) in str(error)


@pytest.fixture(scope="module")
def seeing_parts() -> Parts:
    return Parts.of(registry.pair("tiny-llava"))


@pytest.fixture
def sighted(seeing_parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(seeing_parts, monkeypatch, CliRunner())


def test_the_shell_finishes_the_other_lines(sighted: Command, folder: Path) -> None:
    lines: list[dict[str, object]] = [{"prompt": ASK, "images": ["good.png"]}]
    says: list[str] = []
    for number, (kind, bad) in enumerate(BAD.items(), 1):
        files = written(bad, folder)
        if bad.data is not None:
            files = [path.rename(folder / f"{kind}.png") if path.name == "bad.png" else path for path in files]
        lines.append({"prompt": bad.prompt, "images": [path.name for path in files]})
        says.append(starts(f"prompt {number}", files))
    lines.append({"prompt": ASK, "images": ["good.png"]})
    path = write_lines(folder / "in.jsonl", *lines)
    ran = sighted("generate", "--input", path, "--keep-going", "--max-length", str(LENGTH))
    found = parsed(ran.out)
    assert ran.code == 1
    assert [line["finish_reason"] for line in found] == ["eos", *["error"] * len(BAD), "eos"]
    assert {found[0]["text"], found[-1]["text"]} == {right_answer(SEE, ROW)}
    for line, bad, begins in zip(found[1:-1], BAD.values(), says, strict=True):
        error = cast("str", line["error"])
        assert error.startswith(begins)
        assert bad.says.format(folder=folder) in error
    # Without --keep-going the first of them ends it all.
    ran = sighted("generate", "--input", path, "--max-length", str(LENGTH))
    assert ran.code == 1
    assert says[0] in ran.err


@pytest.mark.parametrize("kind", BAD)
def test_the_shell_says_what_is_wrong_with_one_prompt(sighted: Command, folder: Path, kind: str) -> None:
    bad = BAD[kind]
    files = written(bad, folder)
    flags = [part for path in files for part in ("--image", str(path))]
    ran = sighted("generate", bad.prompt, *flags, "--max-length", str(LENGTH))
    assert (ran.code, ran.out.strip()) == (1, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith(f"error: {starts('PROMPT', files)}")
    assert bad.says.format(folder=folder) in last


def test_the_shell_reads_what_python_reads(sighted: Command, folder: Path) -> None:
    (folder / "turned.png").write_bytes(turned())
    ran = sighted("generate", "--image", folder / "turned.png", ASK, "--compare")
    assert (ran.code, ran.out.strip()) == (0, right_answer(SEE, ROW))
    assert "same tokens: yes" in ran.err


def test_a_model_of_text_refuses_images_and_answers_the_rest(
    tiny_pair_parts: Parts, sighted: Command, folder: Path
) -> None:
    blind = evolve(sighted, parts=tiny_pair_parts)
    path = write_lines(folder / "in.jsonl", {"prompt": "x", "images": ["good.png"]}, {"prompt": "def main():"})
    ran = blind("generate", "--input", path, "--keep-going", "--max-new-tokens", "4")
    refused, answered = parsed(ran.out)
    assert ran.code == 1
    said = "1 image is given, but tiny-llama reads text only; leave them out, or use a target with an image encoder"
    assert cast("str", refused["error"]).startswith(f"{starts('prompt 0', [folder / 'good.png'])}{said}")
    assert answered["finish_reason"] == "length"


@pytest.fixture(scope="module")
def tiny_pair_parts() -> Parts:
    return Parts.of(registry.pair("tiny"))
