"""Images by the Python interface: where they come from, what is said of bad ones, and all else a request may ask for."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.errors import CapacityError, ContextLengthError, InputError, OutriderError
from outrider.generation.model import ImageLike, Prompt, SpeculativeModel
from outrider.generation.settings import RequestSettings
from outrider.interfaces import DrafterBuilder, GraphRunner, PreparedPrompt, Target, Verifier, VideoFrames
from outrider.loop.build import EngineOptions
from outrider.types import HiddenTap, MediaView
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier, TypicalVerifier
from outrider_backends.sdpa import SdpaBackend
from tests.support.engines import model_of
from tests.support.pair import trained_pair
from tests.support.runners import RUNNERS
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_images import ToyMedia, greedy_after, media_of, seeing_target, toy_image, with_toy_images
from tests.support.toy_target import toy_target
from tests.support.viewed_draft import ViewedDraft

ONE, TWO = toy_image(2, 3, 1), toy_image(1, 4, 2)
COUNT = 12


def model_for(target: Target, batch: int = 3, runner: str = "eager", drafted: bool = True) -> SpeculativeModel:
    width = target.stack.spec.hidden_size
    draft = ViewedDraft(ToyDraft(target, taps=(HiddenTap.at(1),), hidden=width), MediaView.TARGET_EMBEDDING)
    return SpeculativeModel(
        target,
        ChainBuilder(draft, 3) if drafted else None,
        attention=SdpaBackend(),
        runner=RUNNERS[runner],
        options=EngineOptions(max_batch_size=batch, page_size=4),
    )


@cache
def shared() -> SpeculativeModel:
    return model_for(seeing_target(3))


def expected(text: str, images: Sequence[bytes], target: Target | None = None) -> tuple[int, ...]:
    target = shared().target if target is None else target
    return greedy_after(target, media_of(target).prepare(text, images), COUNT)


@pytest.mark.parametrize("of", [bytes, Path, str])
def test_an_image_is_a_path_or_the_bytes_of_a_file(tmp_path: Path, of: type[ImageLike]) -> None:
    path = tmp_path / "one.toy"
    path.write_bytes(ONE)
    image: ImageLike = ONE if of is bytes else path if of is Path else str(path)
    found = [
        shared().generate("see <image>?", images=[image], max_new_tokens=COUNT),
        shared().generate(Prompt("see <image>?", images=(image,)), max_new_tokens=COUNT),
        [delta.completion for delta in shared().stream("see <image>?", images=[image], max_new_tokens=COUNT)][-1],
    ]
    for completion in found:
        assert completion is not None
        assert completion.token_ids == expected("see <image>?", [ONE])


def test_one_image_alone_is_a_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "one.toy"
    path.write_bytes(ONE)
    assert Prompt("x", images=str(path)).images == (str(path),)
    assert Prompt("x", images=[ONE, path]).images == (ONE, path)


def test_a_text_without_placeholders_is_a_users_message() -> None:
    """Rendered by the template of the processor, images first; one with placeholders is the prompt itself."""
    completion = shared().generate("what do you see?", images=[ONE, TWO], max_new_tokens=COUNT)
    assert completion.token_ids == expected("user: <image> <image> what do you see? you: ", [ONE, TWO])
    rendered = media_of(shared().target).render_chat([{"role": "user", "content": "hm <image>"}])
    assert rendered is not None
    assert shared().generate(rendered, images=[ONE], max_new_tokens=COUNT).token_ids == expected(rendered, [ONE])


def test_without_a_template_placeholders_are_needed() -> None:
    model = model_for(seeing_target(chat=False))
    with pytest.raises(
        InputError, match=r"prompt 0 .*2 images were given, but the prompt has 0 placeholders and the model no"
    ):
        model.generate("what?", images=[ONE, TWO])
    assert model.generate("<image>", images=[ONE], max_new_tokens=COUNT).token_ids == expected(
        "<image>", [ONE], model.target
    )


def test_ids_of_a_prompt_are_those_of_its_images_too() -> None:
    completion = shared().generate((0, 5, 46, 9), images=[ONE], max_new_tokens=2)
    assert completion.prompt_token_ids == (0, 5, *[46] * 6, 9)
    prepared = media_of(shared().target).prepare((0, 5, 46, 9), [ONE])
    assert completion.token_ids == greedy_after(shared().target, prepared, 2)


@pytest.mark.parametrize("runner", RUNNERS)
def test_eight_requests_half_with_images_are_eight_single_runs(runner: str) -> None:
    target = seeing_target(3)
    prompts = [
        Prompt(f"what is {number}?", images=(toy_image(1 + number % 3, 2, number),) if number % 2 else ())
        for number in range(8)
    ]
    together = model_for(target, 3, runner).generate_batch(prompts, max_new_tokens=COUNT).completions
    for prompt, completion in zip(prompts, together, strict=True):
        # A fresh model for each: nothing can be left over.
        alone = model_for(target, 1, drafted=False).generate(prompt, max_new_tokens=COUNT)
        assert (completion.token_ids, completion.text) == (alone.token_ids, alone.text)
        assert completion.prompt_token_ids == alone.prompt_token_ids


def test_log_probabilities_and_hidden_states_cover_the_image() -> None:
    prompts = [Prompt("see <image> now", images=[ONE]), Prompt("see now")]
    asked = model_for(seeing_target(3)).generate_batch(prompts, max_new_tokens=5, logprobs=2, hidden_states="full")
    plain = model_for(seeing_target(3), drafted=False)
    for prompt, found in zip(prompts, asked.completions, strict=True):
        alone = plain.generate(prompt, max_new_tokens=5, logprobs=2, hidden_states="full")
        assert found.hidden_states is not None
        assert alone.hidden_states is not None
        assert len(found.hidden_states) == len(found.prompt_token_ids) + 4
        assert torch.allclose(found.hidden_states, alone.hidden_states, atol=1e-5)
        assert [each.chosen for each in found.logprobs] == pytest.approx(
            [each.chosen for each in alone.logprobs], abs=1e-4
        )


def test_stops_end_an_answer_about_an_image() -> None:
    whole = shared().generate("see <image>", images=[ONE], max_new_tokens=COUNT)
    sequence = whole.token_ids[4:6]
    found = shared().generate("see <image>", images=[ONE], max_new_tokens=COUNT, stop_sequences=[sequence])
    place = next(at for at in range(COUNT) if whole.token_ids[at : at + 2] == sequence)
    assert found.finish_reason == "stop"
    assert found.token_ids[:place] == whole.token_ids[:place]
    ended = shared().generate("see <image>", images=[ONE], max_new_tokens=COUNT, eos_token_ids=[whole.token_ids[3]])
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[3]) + 1]
    assert ended.finish_reason == "eos"


BAD: dict[str, tuple[Prompt, type[OutriderError], str]] = {
    "missing": (
        Prompt("see <image>", images=["no/such.toy"]),
        InputError,
        r"image 1 of 1, 'no/such.toy': No such file or directory",
    ),
    "a folder": (Prompt("see <image>", images=[Path()]), InputError, r"image 1 of 1, '.': Is a directory"),
    "no path": (Prompt("see <image>", images=["a\0b"]), InputError, r"image 1 of 1, 'a\\x00b': .*null"),
    "two missing": (
        Prompt("x", images=["no", ONE, "nope"]),
        InputError,
        r"2 problems\n.*image 1 of 3.*\n.*image 3 of 3",
    ),
    "corrupt": (Prompt("see <image>", images=[b"TOYx"]), InputError, r"image 1 of 1 is corrupt: 4 bytes"),
    "empty": (Prompt("see <image>", images=[b""]), InputError, r"images of 0 bytes\).* corrupt: 0 bytes"),
    "no pixels": (Prompt("see <image>", images=[toy_image(0, 3, 1)]), InputError, r"has no pixels: it is 3 × 0"),
    "too few": (Prompt("see <image> <image>", images=[ONE]), InputError, "2 placeholders, 1 images"),
    "none": (Prompt("see <image>"), InputError, "1 placeholders, 0 images"),
    "none for ids": (Prompt((0, 46, 46)), InputError, "2 placeholders, 0 images"),
    "too many": (Prompt("see <image>", images=[ONE, TWO]), InputError, "1 placeholders, 2 images"),
    "ids without a place": (Prompt((0, 5), images=[ONE]), InputError, "0 placeholders, 1 images"),
    "too large": (
        Prompt("see <image>", images=[toy_image(10, 20, 1)]),
        ContextLengthError,
        r"205 tokens, at most 95 are allowed",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_fails_its_own_request(kind: str) -> None:
    bad, error, says = BAD[kind]
    good = Prompt("see <image>", images=[ONE])
    model = model_for(seeing_target(3))
    assert isinstance(model.target.media, ToyMedia)
    result = model.generate_batch([good, "see", bad, good], max_new_tokens=4, raise_errors=False)
    assert [completion.finish_reason for completion in result.completions] == ["length", "length", "error", "length"]
    assert [result.completions[place].token_ids for place in (0, 3)] == [expected("see <image>", [ONE])[:4]] * 2
    assert model.target.media.encoded == 2, "nothing of the bad request is encoded"
    failed = result.completions[2].error
    assert failed is not None
    assert type(failed) is error
    with pytest.raises(error, match=f"(?s)^prompt 2.*{says}"):
        raise failed
    with pytest.raises(error, match=f"(?s)^the bad one.*{says}"):
        model.generate(Prompt(bad.content, images=bad.images, name="the bad one"))


@pytest.mark.parametrize("images", [[object()], object()], ids=["in a list", "alone"])
def test_what_is_neither_a_path_nor_bytes_is_refused(images: list[ImageLike]) -> None:
    with pytest.raises(
        InputError, match=r"<object object at .*(; give the path of an image file, or its bytes|; give a list)"
    ):
        model_for(seeing_target(1)).generate("see <image>", images=images)


def test_images_that_the_device_has_no_memory_for_fail_their_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Tensor]] = []
    prepare = ToyMedia.prepare

    def full(
        self: ToyMedia,
        text: str | Sequence[int],
        media: Sequence[bytes],
        max_tokens: int | None = None,
        runner: GraphRunner | None = None,
        videos: Sequence[VideoFrames] = (),
    ) -> PreparedPrompt:
        if media == (TWO,):
            half_done = torch.zeros(7)
            held.append(weakref.ref(half_done))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nmore of it")
        return prepare(self, text, media, max_tokens, runner, videos)

    monkeypatch.setattr(ToyMedia, "prepare", full)
    good, bad = Prompt("see <image>", images=[ONE]), Prompt("see <image>", images=[TWO])
    first, failed, last = (
        shared().generate_batch([good, bad, good], max_new_tokens=COUNT, raise_errors=False).completions
    )
    assert first.token_ids == last.token_ids == expected("see <image>", [ONE])
    assert isinstance(failed.error, CapacityError)
    said = r"^prompt 1 \(images of 6 bytes\): 1 image is given, and cpu has no memory left .*allocate 3 GiB\.\); give fewer"
    assert re.search(said, str(failed.error)), failed.error
    assert held[0]() is None, "what was computed until then is free"


def test_a_model_of_text_says_which_models_read_images() -> None:
    model = model_of(toy_target())
    result = model.generate_batch([Prompt((0, 5), images=[ONE, TWO]), (0, 5)], max_new_tokens=2, raise_errors=False)
    assert [completion.finish_reason for completion in result.completions] == ["error", "length"]
    assert str(result.completions[0].error) == (
        "prompt 0 (images of 6 bytes, of 6 bytes): 2 images are given, but toy reads text only; leave them out, or use a "
        "target with an image encoder: a LLaVA or Qwen2.5-VL checkpoint, or the pair tiny-llava"
    )


def test_images_beside_a_prompt_with_its_own() -> None:
    with pytest.raises(InputError, match="images are given beside a Prompt"):
        shared().generate(Prompt("x", images=[ONE]), images=[TWO])


def test_each_request_encodes_its_images_anew() -> None:
    model = model_for(seeing_target())
    assert isinstance(model.target.media, ToyMedia)
    model.generate_batch([Prompt("a <image> <image>", images=[ONE, ONE])] * 2, max_new_tokens=1)
    assert model.target.media.encoded == 4


# -- the trained pair, made to read toy images -------------------------------------------------------------------------

HOLE = 4000
REGEX = "[a-c]{3}-[0-9]{4}( ok)?"


@cache
def sighted() -> Target:
    return with_toy_images(trained_pair().target, HOLE)


SHAPES: dict[str, DrafterBuilder | None] = {
    "plain": None,
    "chain": ChainBuilder(trained_pair().eagle3, 4),
    "tree": TreeBuilder(trained_pair().eagle3, 3, 3, 8),
    "eagle 1": ChainBuilder(trained_pair().eagle1, 3),
}


def answers(
    shape: str, runner: str, prompts: Sequence[Prompt], verifier: Verifier | None = None
) -> list[tuple[int, ...]]:
    model = SpeculativeModel(
        sighted(),
        SHAPES[shape],
        attention=SdpaBackend(),
        runner=RUNNERS[runner],
        verifier=verifier,
        options=EngineOptions(max_batch_size=4, max_length=128),
    )
    return [completion.token_ids for completion in model.generate_batch(prompts, max_new_tokens=10).completions]


@cache
def trained_answers() -> list[tuple[int, ...]]:
    target = sighted()
    found: list[tuple[int, ...]] = []
    for prompt in TRAINED:
        content = prompt.content
        files = [image for image in prompt.images if isinstance(image, bytes)]
        found.append(greedy_after(target, media_of(target).prepare(content, files), 10))
    return found


TRAINED = (
    Prompt("def main():<image>\n", images=[ONE]),
    Prompt("import numpy as np\n"),
    Prompt("<image>x = [<image>", images=[TWO, ONE]),
    Prompt("def main():<image>\n", images=[TWO]),
)


@pytest.mark.parametrize(
    ("shape", "runner", "verifier"),
    [
        ("chain", "eager", ExactVerifier()),
        ("chain", "rounds", ExactVerifier()),
        ("chain", "breakable", ExactVerifier()),
        ("tree", "eager", ExactVerifier()),
        ("tree", "rounds", ExactVerifier()),
        ("eagle 1", "eager", ExactVerifier()),
        ("chain", "eager", RejectionVerifier()),
        ("chain", "eager", BlockVerifier()),
        ("tree", "eager", RejectionVerifier()),
        ("tree", "eager", TypicalVerifier()),
    ],
)
def test_eagle_beside_images(shape: str, runner: str, verifier: Verifier) -> None:
    assert answers(shape, runner, TRAINED, verifier) == trained_answers()
    assert trained_answers()[0] != trained_answers()[3], "the image matters"


def test_a_grammar_holds_after_an_image() -> None:
    prompt = Prompt("x = <image>", RequestSettings(max_new_tokens=30, regex=REGEX), images=[ONE])
    plain = answers("plain", "eager", [prompt])
    assert answers("tree", "rounds", [prompt, TRAINED[1]])[:1] == plain
    codec = sighted().codec
    assert codec is not None
    assert re.fullmatch(REGEX, codec.decode(plain[0]))
