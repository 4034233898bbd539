"""Videos by the Python interface: frames as files or bytes, what is said of bad ones, and the others of their batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outrider import Video
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ContextLengthError, InputError, OutriderError
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.interfaces import VideoFrames
from outrider.loop.build import EngineOptions
from outrider_backends.sdpa import SdpaBackend
from tests.adapters.media.clips import clip
from tests.adapters.media.models import HubModel, load, media_of, qwen
from tests.adapters.media.pictures import png
from tests.support.engines import model_of
from tests.support.runners import RUNNERS
from tests.support.toy_images import seeing_target, toy_image
from tests.support.toy_target import toy_target

ASK = "w20 <|vision_start|> <|video_pad|> <|vision_end|> w21"
SHOWN = clip(60, 40, 5, 2.0, 1)
COUNT = 8


@cache
def hub() -> HubModel:
    return qwen()


@cache
def shared() -> SpeculativeModel:
    with TemporaryDirectory() as directory:
        target = load(hub().save(Path(directory)))
        assert media_of(target).render_chat([{"role": "user", "content": "w20"}])  # read while the files are there
    return SpeculativeModel(
        target,
        NgramBuilder(3),
        attention=SdpaBackend(),
        runner=RUNNERS["eager"],
        options=EngineOptions(max_batch_size=3, page_size=4, max_length=96),
    )


def video(of: VideoFrames = SHOWN) -> Video:
    return Video(of.frames, of.frames_per_second)


def expected(text: str, videos: list[VideoFrames], images: tuple[bytes, ...] = ()) -> list[int]:
    ids = media_of(shared().target).prepare(text, images, videos=videos).token_ids
    return hub().generate(ids, images, COUNT, videos)


def generated(prompt: str | Prompt, videos: list[Video], images: tuple[bytes, ...] = ()) -> list[int]:
    completion = shared().generate(prompt, videos=videos, images=images, max_new_tokens=COUNT, ignore_eos=True)
    return list(completion.token_ids)


def test_frames_are_paths_or_bytes(tmp_path: Path) -> None:
    for number, data in enumerate(SHOWN.frames):
        (tmp_path / f"{number}.png").write_bytes(data)
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    right = expected(ASK, [SHOWN])
    assert generated(ASK, [Video(paths, 2.0)]) == right
    assert generated(ASK, [Video([str(paths[0]), *SHOWN.frames[1:]], 2)]) == right
    assert generated(Prompt(ASK, videos=video()), []) == right
    streamed = list(shared().stream(ASK, videos=[video()], max_new_tokens=COUNT, ignore_eos=True))
    assert [token for delta in streamed for token in delta.token_ids] == right
    assert generated(ASK, [Video(SHOWN.frames, 0.5)]) != right
    assert generated(ASK, [Video(SHOWN.frames[:4], 2.0)]) != right


def test_a_text_without_placeholders_is_a_users_message() -> None:
    """The template is given images first, then videos."""
    other = clip(30, 30, 2, 1.0, 2)
    picture = png(50, 50, 3)
    around = "<|vision_start|> {} <|vision_end|> "
    rendered = "user : " + around.format("<|image_pad|>") + 2 * around.format("<|video_pad|>") + "w20 w21 assistant :"
    found = generated("w20 w21", [video(), video(other)], (picture,))
    assert found == expected(rendered, [SHOWN, other], (picture,))
    assert found != generated("w20 w21", [video(other), video()], (picture,))


BAD: dict[str, tuple[Prompt, type[OutriderError], str]] = {
    "missing": (
        Prompt(ASK, videos=[Video([SHOWN.frames[0], "no/such.png"], 1.0)]),
        InputError,
        r"\(videos of 2 frames no/such.png\): its videos cannot be read: frame 2 of 2 of video 1 of 1, 'no/such.png': No such",
    ),
    "corrupt": (
        Prompt(ASK + ASK, videos=[video(), Video([*SHOWN.frames[:1], SHOWN.frames[1][:60], *SHOWN.frames[2:]], 2.0)]),
        InputError,
        r"the prompt's videos cannot be used: frame 2 of 5 of video 2 of 2 is corrupt or truncated, 60 bytes",
    ),
    "no frames": (Prompt(ASK, videos=[Video((), 1.0)]), InputError, r"video 1 of 1: it is no video: it has 0 frames"),
    "no rate": (
        Prompt(ASK, videos=[Video(SHOWN.frames, 0)]),
        InputError,
        r"video 1 of 1: .*frames per second are 0, allow",
    ),
    "negative": (Prompt(ASK, videos=[Video(SHOWN.frames, -2.5)]), InputError, r"frames per second are -2.5"),
    "nan": (Prompt(ASK, videos=[Video(SHOWN.frames, float("nan"))]), InputError, r"frames per second are nan"),
    "infinite": (Prompt(ASK, videos=[Video(SHOWN.frames, float("inf"))]), InputError, r"frames per second are inf"),
    "huge": (Prompt(ASK, videos=[Video(SHOWN.frames, 10**400)]), InputError, r"frames per second are inf"),
    "sizes": (
        Prompt(ASK, videos=[Video([png(60, 40), png(60, 40), png(40, 60)], 1.0)]),
        InputError,
        r"frame 3 of 3 of video 1 of 1 has 40 × 60 pixels, frame 1 has 60 × 40; scale or crop",
    ),
    "shape": (
        Prompt(ASK, videos=[Video([png(3000, 9)], 1.0)]),
        InputError,
        r"video 1 of 1 \(1 × 3000 × 9 pixels\): the l",
    ),
    "too few": (
        Prompt(ASK + " " + ASK, videos=[video()]),
        InputError,
        r"has 2 video placeholders \(token id 5\) and 1 video was given",
    ),
    "none": (Prompt(ASK), InputError, r"has 1 video placeholder \(token id 5\) and 0 videos were given"),
    "too many": (Prompt(ASK, videos=[video()] * 2), InputError, r"has 1 video placeholder .* and 2 videos were given"),
    "images instead": (
        Prompt(ASK, images=[png(50, 50)]),
        InputError,
        r"(?s)2 problems.*0 image placeholders .* 1 image was given.*1 video placeholder .* 0 videos were given",
    ),
    "too long": (
        Prompt(ASK, videos=[video(clip(100, 100, 60, 1.0))]),
        ContextLengthError,
        r"124 tokens, 120 of them for 1 video \(60 × 100 × 100 pixels: 120\), at most 95 are allowed; give fewer or sm",
    ),
    "too slow": (
        Prompt(ASK, videos=[Video(SHOWN.frames, 0.01)]),
        ContextLengthError,
        r"video 1 of 1 lasts 500 seconds, until position 802 in time, but .* has the positions 0 to 255",
    ),
    "for ages": (
        Prompt(ASK, videos=[Video(SHOWN.frames, 1e-300)]),
        InputError,
        r"1e-300 frames per second it lasts 4e\+300",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_video_fails_its_own_request(kind: str) -> None:
    bad, error, says = BAD[kind]
    good = Prompt(ASK, videos=[video()])
    result = shared().generate_batch(
        [good, "w30 w31", bad, good], max_new_tokens=COUNT, ignore_eos=True, raise_errors=False
    )
    assert [each.finish_reason for each in result.completions] == ["length", "length", "error", "length"]
    assert [list(result.completions[place].token_ids) for place in (0, 3)] == [expected(ASK, [SHOWN])] * 2
    failed = result.completions[2].error
    assert failed is not None
    assert type(failed) is error
    with pytest.raises(
        error, match=f"^prompt 2.*{says}" if not says.startswith("(?s)") else f"(?s)^prompt 2.*{says[4:]}"
    ):
        raise failed


def test_all_that_is_wrong_with_files_is_told_at_once() -> None:
    bad = [Video(["gone.png", SHOWN.frames[0], "lost.png"], 0.0), Video((), 1.0)]
    with pytest.raises(InputError) as caught:
        shared().generate(ASK, videos=bad, images=["away.png"])
    said = [
        "prompt 0 (images away.png; videos of 3 frames gone.png to lost.png, of 0 frames): its images and videos cannot be",
        "5 problems",
        "image 1 of 1, 'away.png'",
        "frame 1 of 3 of video 1 of 2",
        "frame 3 of 3 of video 1 of 2",
        "video 1 of 2: it is no video: its frames per second are 0",
        "video 2 of 2: it is no video: it has 0 frames",
    ]
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_models_that_read_no_videos_say_so() -> None:
    seeing = SpeculativeModel(
        seeing_target(), attention=SdpaBackend(), runner=RUNNERS["eager"], options=EngineOptions(page_size=4)
    )
    with pytest.raises(
        InputError,
        match=r"^prompt 0 \(images of 6 bytes; videos of 5 frames\): 1 image and 1 video are given, "
        "but toy reads no videos; give frames as images, or use a Qwen2.5-VL checkpoint",
    ):
        seeing.generate("see <image>", images=[toy_image(1, 1, 1)], videos=[video()])
    with pytest.raises(InputError, match="1 video is given, but toy reads text only"):
        model_of(toy_target()).generate((0, 5), videos=[video()])


@pytest.mark.parametrize("value", [["a.mp4"], 7, [SHOWN]], ids=["a path", "a number", "a provider's"])
def test_what_is_no_video_is_refused(value: list[Video]) -> None:
    with pytest.raises(InputError, match=r"Video\(frames, frames_per_second\)"):
        shared().generate(ASK, videos=value)
    with pytest.raises(InputError, match="videos are given beside a Prompt"):
        shared().generate(Prompt(ASK, videos=[video()]), videos=[video()])
