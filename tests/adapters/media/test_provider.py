"""Prompts that cannot be used are refused with all faults and numbers, before anything is encoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL.Image import Image
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, ContextLengthError, InputError
from outrider.interfaces import GraphRunner, MediaBody, Target
from outrider_adapters.media import Grid, ImageEncoder, ImagePromptProvider, MediaChat, Placement, PromptPositions
from outrider_adapters.media import Placeholders as Ids
from tests.adapters.media.models import IDS, HubModel, llava, load, media_of, prompt, qwen, words
from tests.adapters.media.pictures import png


class Counting(ImageEncoder):
    """Images of one token for each ten pixels of width; counts what is encoded."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.encoded = 0

    def grid(self, width: int, height: int) -> Grid:
        if height > width:
            raise InputError(f"upright images ({height} above {width}) are refused")
        return Grid(1, width // 10)

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        return ()

    @property
    def videos(self) -> None:
        return None

    def encode(self, images: Sequence[Image], grids: Sequence[Grid], runner: GraphRunner | None) -> Tensor:
        self.encoded += len(images)
        return torch.ones(sum(grid.num_tokens for grid in grids), self._width)

    def positions(self, placement: Placement) -> PromptPositions:
        return PromptPositions(torch.arange(len(placement.token_ids)), 0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava().save(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def target(directory: Path) -> Target:
    return load(directory)


def provider(directory: Path, target: Target, image: int = IDS["<image>"]) -> tuple[ImagePromptProvider, Counting]:
    encoder = Counting(target.stack.spec.hidden_size)
    ids = Ids(image)
    return ImagePromptProvider(target.stack, encoder, ids, target.codec, MediaChat(Checkpoint(directory))), encoder


def test_a_prompt_that_is_too_long_is_refused_before_it_is_encoded(directory: Path, target: Target) -> None:
    media, encoder = provider(directory, target)
    ids, images = [*words(3), IDS["<image>"], IDS["<image>"]], [png(40, 8), png(70, 9)]
    with pytest.raises(ContextLengthError) as caught:
        media.prepare(ids, images, max_tokens=13)
    said = ["14 tokens", "11 of them for 2 images", "40 × 8 pixels: 4", "70 × 9 pixels: 7", "at most 13"]
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert encoder.encoded == 0
    assert len(media.prepare(ids, images, max_tokens=14).token_ids) == 14
    assert encoder.encoded == 2


@pytest.mark.parametrize("excess", [-1, 1])
def test_rows_that_are_not_as_many_as_their_places_are_refused(directory: Path, target: Target, excess: int) -> None:
    """One too many would otherwise be dropped without a word, and every later image be shifted."""

    class Miscounting(Counting):
        def encode(self, images: Sequence[Image], grids: Sequence[Grid], runner: GraphRunner | None) -> Tensor:
            rows = super().encode(images, grids, runner)
            return rows.new_ones(rows.shape[0] + excess, rows.shape[1])

    hidden = target.stack.spec.hidden_size
    media = ImagePromptProvider(
        target.stack, Miscounting(hidden), Ids(IDS["<image>"]), target.codec, MediaChat(Checkpoint(directory))
    )
    with pytest.raises(
        CheckpointError, match=rf"rows \[{9 + excess}, {hidden}\] for 1 image, expected \[9, {hidden}\]"
    ):
        media.prepare([IDS["<image>"]], [png(90, 8)])


def test_a_text_alone_can_be_too_long(directory: Path, target: Target) -> None:
    media, _ = provider(directory, target)
    with pytest.raises(ContextLengthError, match="the prompt has 3 tokens, at most 2 are allowed"):
        media.prepare(words(3), [], max_tokens=2)


def test_all_bad_images_are_named_at_once(directory: Path, target: Target) -> None:
    media, encoder = provider(directory, target)
    with pytest.raises(InputError) as caught:
        media.prepare([IDS["<image>"]] * 4, [b"", png(20, 20), png(10, 30), b"no image at all"])
    said = ["3 problems", "image 1 of 4 is empty", "image 3 of 4 (10 × 30 pixels): upright", "image 4 of 4 is no image"]
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert encoder.encoded == 0


def test_ids_that_mean_nothing_are_refused(directory: Path, target: Target) -> None:
    media, _ = provider(directory, target)
    with pytest.raises(InputError) as caught:
        media.prepare([9, 90, -1, 5000], [])
    said = ["token ids 90, -1, 5000", "0..89"]
    assert all(part in str(caught.value) for part in said), str(caught.value)


@pytest.mark.parametrize("image", [89, 90, 2**40])
def test_a_placeholder_outside_the_embedding_is_never_looked_up(directory: Path, target: Target, image: int) -> None:
    media, _ = provider(directory, target, image)
    ready = media.prepare([9, image, 10], [png(30, 5)])
    assert ready.token_ids == (9, image, image, image, 10)
    expected = target.stack.embed(torch.tensor([9, 0, 0, 0, 10]))
    expected[1:4] = 1
    assert torch.equal(ready.embeds, expected)
    assert ready.media == ((1, 4),)


def test_placeholders_are_counted_before_anything_is_read(directory: Path, target: Target) -> None:
    media, _ = provider(directory, target)
    assert media.count_placeholders(words(4)) == media.count_placeholders("w20 w21") == 0
    assert (
        media.count_placeholders([IDS["<image>"], 20, IDS["<image>"]])
        == media.count_placeholders("<image> <image>")
        == 2
    )


def test_text_is_encoded_with_its_placeholders(target: Target) -> None:
    media = media_of(target)
    by_text = media.prepare("w20 <image> w21", [png(50, 50)])
    by_ids = media.prepare([20, IDS["<image>"], 21], [png(50, 50)])
    repeated = media.prepare("w20 " + "<image> " * 9 + "w21", [png(50, 50)])
    assert by_text.token_ids == by_ids.token_ids == repeated.token_ids
    assert torch.equal(by_text.embeds, by_ids.embeds)
    assert torch.equal(by_text.embeds, repeated.embeds)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    directory = llava().save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    target = load(directory)
    assert any("no tokenizer" in note for note in target.notes)
    with pytest.raises(InputError, match="no tokenizer; give token ids"):
        media_of(target).prepare("w20", [])


def test_an_image_that_the_processor_refuses_is_named_with_its_sides(tmp_path: Path) -> None:
    hub = qwen()
    media = media_of(load(hub.save(tmp_path)))
    with pytest.raises(InputError) as caught:
        media.prepare(prompt(hub, None, None), [png(9, 9), png(10000, 10)])
    assert "image 2 of 2 (10000 × 10 pixels): the longer side is 1000 times" in str(caught.value)
    assert "200" in str(caught.value)


def test_larger_images_take_more_tokens_until_the_limit(tmp_path: Path) -> None:
    hub = qwen()
    media = media_of(load(hub.save(tmp_path)))
    counts = [
        len(media.prepare(prompt(hub, None), [png(side, side)]).token_ids) - 2 for side in (5, 60, 100, 130, 4000)
    ]
    assert counts == [4, 4, 16, 16, 16]


@pytest.mark.parametrize("hub", [llava(), qwen()], ids=["llava", "qwen2_5_vl"])
def test_a_conversation_becomes_a_prompt_with_placeholders(hub: HubModel, tmp_path: Path) -> None:
    target = load(hub.save(tmp_path))
    media = media_of(target)
    parts = [{"type": "image"}, {"type": "text", "text": "w20 w21"}, {"type": "image"}]
    text = media.render_chat([{"role": "user", "content": parts}, {"role": "assistant", "content": "w22"}])
    assert text is not None
    ready = media.prepare(text, [png(50, 50, 1), png(60, 60, 2)])
    by_hand = media.prepare(
        [*encode(target, "user :"), *prompt(hub, None, [20, 21], None), *encode(target, "assistant : w22 assistant :")],
        [png(50, 50, 1), png(60, 60, 2)],
    )
    assert ready.token_ids == by_hand.token_ids
    assert torch.equal(ready.embeds, by_hand.embeds)


def encode(target: Target, text: str) -> list[int]:
    assert target.codec is not None
    return target.codec.encode(text)


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "processor_config.json"])
def test_templates_are_found_wherever_they_are_kept(name: str, directory: Path, tmp_path: Path) -> None:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((directory / file).read_bytes())
    chat = MediaChat(Checkpoint(tmp_path))
    assert chat.render([{"role": "user", "content": "w20"}]) is None
    template = "{{ messages[0].content[0].text }}!"
    (tmp_path / name).write_text(template if name.endswith("jinja") else json.dumps({"chat_template": template}))
    assert MediaChat(Checkpoint(tmp_path)).render([{"role": "user", "content": "w20"}]) == "w20!"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves out what message 1 says: 'w20'"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% for", "refuses the conversation"),
    ],
)
def test_a_template_that_loses_text_or_refuses_is_reported(
    template: str, said: str, directory: Path, tmp_path: Path
) -> None:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((directory / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError) as caught:
        MediaChat(Checkpoint(tmp_path)).render([{"role": "user", "content": "w20"}])
    assert said in str(caught.value)
