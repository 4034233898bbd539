"""Videos of Qwen2.5-VL against transformers: what the decoder is fed, logits, positions, and greedy texts, drafted and not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from attrs import evolve, frozen

from outrider._torch import int_rows
from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder, PreparedPrompt, Target, VideoFrames
from outrider.loop.build import EngineOptions, build_engine
from outrider.types import Phase, StackInputs
from outrider.types.request import Request
from outrider_backends.sdpa import SdpaBackend
from tests.adapters.eagle.test_media import bound_to, head_for_media
from tests.adapters.llama.reference import ReferenceAttend
from tests.adapters.media.clips import FRACTIONS, clip
from tests.adapters.media.models import IDS, HubModel, load, media_of, prompt, qwen, words
from tests.adapters.media.pictures import png
from tests.support.engines import drive
from tests.support.runners import RUNNERS

NEW_TOKENS = 10


def video() -> list[int]:
    """A video's placeholder and what stands around it."""
    return [IDS["<|vision_start|>"], IDS["<|video_pad|>"], IDS["<|vision_end|>"]]


@frozen
class Case:
    """A prompt with its media."""

    token_ids: list[int]
    images: list[bytes]
    videos: list[VideoFrames]


@frozen(eq=False)
class Pair:
    """A transformers model and what we made of its checkpoint."""

    hub: HubModel
    target: Target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    hub = qwen()
    return Pair(hub, load(hub.save(tmp_path_factory.mktemp("model"))))


def cases(hub: HubModel) -> dict[str, Case]:
    """Seconds between frames of tokens are whole, as all versions of transformers read them alike."""
    return {
        "one video": Case([*words(3, 1), *video(), *words(4, 2)], [], [clip(60, 40, 6, 2.0, 1)]),
        "one frame": Case([*video(), *words(2, 3)], [], [clip(40, 60, 1, 1.0, 2)]),
        "an odd number of frames": Case([*words(1, 4), *video()], [], [clip(56, 56, 5, 1.0, 3)]),
        "slow": Case([*words(2, 5), *video(), *words(1, 6)], [], [clip(30, 30, 8, 0.5, 4)]),
        "two videos": Case(
            [*video(), *words(2, 7), *video(), *words(2, 8)], [], [clip(90, 30, 4, 2.0, 5), clip(30, 90, 3, 0.25, 6)]
        ),
        "videos and images": Case(
            [*prompt(hub, words(1, 9), None), *video(), *words(2, 10), *video(), *prompt(hub, None, words(1, 11))],
            [png(100, 60, 7), png(40, 90, 8)],
            [clip(64, 48, 4, 1.0, 9), clip(200, 20, 2, 2.0, 10)],
        ),
        "an image": Case(prompt(hub, words(2, 12), None, words(2, 13)), [png(70, 70, 11)], []),
        "text": Case(words(7, 14), [], []),
    }


def prepared(target: Target, case: Case) -> PreparedPrompt:
    return media_of(target).prepare(case.token_ids, case.images, videos=case.videos)


def continued(
    target: Target,
    prompts: Sequence[PreparedPrompt],
    drafter: DrafterBuilder | None = None,
    runner: str = "eager",
    max_prefill_tokens: int = 8192,
) -> list[list[int]]:
    options = EngineOptions(max_batch_size=4, page_size=4, max_prefill_tokens=max_prefill_tokens, max_length=200)
    engine = build_engine(target, drafter, attention=SdpaBackend(), runner=RUNNERS[runner](), options=options)
    ids = [engine.submit(Request(one.token_ids, max_new_tokens=NEW_TOKENS, eos_ids=()), one) for one in prompts]
    done = drive(engine)
    engine.close()
    return [done[one].token_ids for one in ids]


def expected(pair: Pair) -> list[list[int]]:
    return [
        pair.hub.generate(prepared(pair.target, case).token_ids, case.images, NEW_TOKENS, case.videos)
        for case in cases(pair.hub).values()
    ]


def check_against_transformers(pair: Pair, case: Case) -> None:
    ours = prepared(pair.target, case)
    reference = pair.hub.run(ours.token_ids, case.images, case.videos)
    assert reference.positions is not None
    assert torch.equal(ours.positions, reference.positions)
    assert float((ours.embeds - reference.embeds).abs().max()) <= 1e-4
    with torch.no_grad():
        attend = ReferenceAttend(pair.target.stack.spec.layers)
        hidden = pair.target.stack.run_layers(ours.embeds, StackInputs(ours.positions, attend)).hidden
        logits = pair.target.stack.logits(hidden)
    assert float((logits - reference.logits).abs().max()) <= 1e-4
    further = pair.hub.run([*ours.token_ids, 20], case.images, case.videos).positions
    assert further is not None
    assert int_rows(further[:, -1:]) == [[len(ours.token_ids) + ours.position_offset]] * 3


@pytest.mark.parametrize("name", [name for name in cases(qwen()) if name != "text"])
def test_the_decoder_is_fed_what_transformers_feeds_it(pair: Pair, name: str) -> None:
    check_against_transformers(pair, cases(pair.hub)[name])


@pytest.mark.skipif(not FRACTIONS, reason="this transformers cuts fractions of seconds off")
@pytest.mark.parametrize("fps", [3.0, 7.5, 23.976, 30.0, 0.3])
def test_fractions_of_seconds_count(pair: Pair, fps: float) -> None:
    ids = [*words(2, 1), *video(), *words(2, 2), *video()]
    check_against_transformers(pair, Case(ids, [], [clip(40, 40, 15, fps, 1), clip(40, 40, 4, 1.5, 2)]))


@pytest.mark.parametrize("max_prefill_tokens", [8192, 5])
def test_ragged_batches_continue_as_transformers_does(pair: Pair, max_prefill_tokens: int) -> None:
    prompts = [prepared(pair.target, case) for case in cases(pair.hub).values()]
    found = continued(pair.target, prompts, max_prefill_tokens=max_prefill_tokens)
    assert found == expected(pair)
    assert len({tuple(text) for text in found}) == len(found)


@pytest.mark.parametrize(
    ("shape", "runner"), [("chain", "eager"), ("tree", "eager"), ("chain", "rounds"), ("tree", "phases")]
)
def test_drafted_text_is_that_of_transformers(pair: Pair, tmp_path: Path, shape: str, runner: str) -> None:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2]}
    draft = bound_to(pair.target, tmp_path, head_for_media(rope_scaling=rope))
    builder = ChainBuilder(draft, 3) if shape == "chain" else TreeBuilder(draft, 2, 3, 6)
    prompts = [prepared(pair.target, case) for case in cases(pair.hub).values()]
    assert continued(pair.target, prompts, builder, runner, 16) == expected(pair)


def test_a_video_in_the_wrong_place_is_noticed(pair: Pair) -> None:
    """The comparison above can fail: other frames, another order of them, another pace, other rows give other texts."""
    case = cases(pair.hub)["one video"]
    right, (shown,) = prepared(pair.target, case), case.videos
    wrong = [
        prepared(pair.target, evolve(case, videos=[evolve(shown, frames=shown.frames[::-1])])),
        prepared(pair.target, evolve(case, videos=[evolve(shown, frames_per_second=0.5)])),
        prepared(pair.target, evolve(case, videos=[evolve(shown, frames=(*shown.frames[:5], shown.frames[0]))])),
        evolve(right, embeds=right.embeds.roll(1, 0)),
    ]
    texts = continued(pair.target, [right, *wrong])
    assert texts[0] not in texts[1:]


@pytest.mark.parametrize("runner", RUNNERS)
def test_through_a_runner_it_is_the_same(pair: Pair, runner: str) -> None:
    case, made = cases(pair.hub)["videos and images"], RUNNERS[runner]()
    directly = prepared(pair.target, case)
    through = media_of(pair.target).prepare(case.token_ids, case.images, runner=made, videos=case.videos)
    assert torch.equal(directly.embeds, through.embeds)
    assert made.report.ran == {(Phase.MEDIA_ENCODE, "eager"): 3}, "the images, and each video"


def test_placeholders_may_be_repeated_for_every_token(pair: Pair) -> None:
    case = cases(pair.hub)["videos and images"]
    once = prepared(pair.target, case)
    again = prepared(pair.target, evolve(case, token_ids=list(once.token_ids)))
    assert (again.token_ids, again.media) == (once.token_ids, once.media)
    assert torch.equal(again.embeds, once.embeds)


def test_frames_given_as_a_video_are_not_images(pair: Pair) -> None:
    """Two frames make one row of tokens in time, whose pixels are of both."""
    frames = clip(56, 56, 4, 1.0).frames
    as_video = prepared(pair.target, Case(video(), [], [VideoFrames(frames, 1.0)]))
    as_images = prepared(pair.target, Case(prompt(pair.hub, *[None] * 4), list(frames), []))
    assert len(as_video.token_ids) < len(as_images.token_ids)


@pytest.mark.gpu
def test_on_a_gpu_videos_are_placed_alike(pair: Pair, tmp_path: Path) -> None:
    target = load(pair.hub.save(tmp_path), device=torch.device("cuda", torch.cuda.current_device()))
    for case in cases(pair.hub).values():
        ours, exact = prepared(target, case), prepared(pair.target, case)
        # Convolutions round their inputs to TF32 there.
        difference = ours.embeds.cpu() - exact.embeds
        assert float((difference.square().sum() / exact.embeds.square().sum()).sqrt()) < 1e-2
        assert torch.equal(ours.positions.cpu(), exact.positions)
        assert ours.position_offset == exact.position_offset
