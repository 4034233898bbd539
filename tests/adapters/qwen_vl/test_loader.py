"""Qwen2.5-VL checkpoints: published and new spellings give the same model, faults are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError
from outrider_adapters.qwen_vl import loader
from tests.adapters.llama.reference import edit_config, read_tensors, write_tensors
from tests.adapters.media.clips import clip
from tests.adapters.media.models import IDS, HubModel, check_logits, edit_section, load, media_of, prompt, qwen, words


@pytest.mark.parametrize(
    "prefixes",
    [
        ("visual.", "model.", ""),
        ("model.visual.", "model.language_model.", ""),
        ("visual.", "language_model.model.", "language_model."),
    ],
)
def test_every_spelling_of_the_tensors_is_the_same_model(prefixes: tuple[str, str, str], tmp_path: Path) -> None:
    hub = qwen()
    directory = hub.save(tmp_path)
    visual, decoder, head = prefixes
    renamed: dict[str, Tensor] = {}
    for name, tensor in hub.module.state_dict().items():
        part, _, rest = name.removeprefix("model.").partition(".")
        prefix = {"visual": visual, "language_model": decoder}.get(part, f"{head}{part}.")
        renamed[prefix + rest] = tensor.contiguous()
    write_tensors(directory, renamed)
    check_logits(hub, directory)


def test_the_flat_config_that_was_published_is_read(tmp_path: Path) -> None:
    hub = qwen(text={"tie_word_embeddings": True}, tie_word_embeddings=True)
    directory = hub.save(tmp_path)
    config: dict[str, dict[str, object]] = json.loads((directory / "config.json").read_text())
    text = config["text_config"]
    for key in ("rope_parameters", "layer_types", "model_type", "sliding_window"):
        text.pop(key)
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    edit_config(
        directory,
        text_config=...,
        dtype=...,
        **{**text, "rope_theta": 10000.0, "rope_scaling": rope, "torch_dtype": "float32", "tie_word_embeddings": True},
    )
    edit_section(directory, "vision_config", model_type="qwen2_5_vl", rope_parameters=...)
    assert load(directory).stack.spec.positions.axes == 3
    check_logits(hub, directory)


def test_a_window_of_the_decoder_is_that_of_transformers(tmp_path: Path) -> None:
    hub: HubModel = qwen(text={"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1})
    directory = hub.save(tmp_path)
    assert [layer.window for layer in load(directory).stack.spec.layers] == [None, 5]
    check_logits(hub, directory)


def test_a_checkpoint_is_recognised_and_described(tmp_path: Path) -> None:
    checkpoint = Checkpoint(qwen().save(tmp_path))
    assert loader().refuses(checkpoint) is None
    description = loader().describe(checkpoint)
    assert description.problems == ()
    facts = dict(description.facts)
    assert facts["image size"] == "any, a token for 28 × 28 pixels"
    assert facts["tokens per image"] == "4 to 24"
    assert facts["tokens per video"] == "2 to 6 for every 2 frames, 2 positions a second"
    assert facts["rope"] == "default, theta 10000, axes 1/1/2"
    assert int(facts["parameters"].replace(",", "")) == sum(t.numel() for t in read_tensors(tmp_path).values())


def test_without_a_video_token_videos_are_refused_by_name(tmp_path: Path) -> None:
    """And the checkpoint needs no processor for them. transformers' default lies far outside this vocabulary."""
    hub = qwen()
    directory = hub.save(tmp_path)
    edit_config(directory, video_token_id=...)
    edit_config(directory, "video_preprocessor_config.json", video_processor_type="Other")
    target = load(directory)
    media = media_of(target)
    assert not media.reads_videos
    with pytest.raises(InputError, match=r"2 videos are given, but .* reads no videos; give frames as images"):
        media.prepare(prompt(hub, words(2)), [], videos=[clip(50, 50, 2, 1.0)] * 2)
    assert "tokens per video" not in dict(loader().describe(Checkpoint(directory)).facts)
    check_logits(hub, directory)


def test_one_id_cannot_stand_for_both(tmp_path: Path) -> None:
    directory = qwen(video_token_id=IDS["<|image_pad|>"]).save(tmp_path)
    with pytest.raises(CheckpointError, match="'image_token_id' and 'video_token_id' are both 4"):
        load(directory)


def test_a_video_token_that_is_another_in_the_tokenizer_is_refused(tmp_path: Path) -> None:
    directory = qwen(video_token_id=IDS["<s>"]).save(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"videos stand at token id 0, but the tokenizer's '<\|video_pad\|>' is id 5"
    ):
        load(directory)
    assert any("'video_token_id'" in problem for problem in loader().describe(Checkpoint(directory)).problems)


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("vision_config", {"out_hidden_size": 64}, ["'out_hidden_size' is 64", "hidden size is 32"]),
        ("text_config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, ["no 'mrope_section'"]),
        ("text_config", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 1]}}, ["[1, 1, 1]"]),
        ("vision_config", {"depth": 2}, ["blocks.2.", "not used by this model"]),
        ("vision_config", {"spatial_merge_size": 0, "num_heads": 0}, ["2 problems", "'spatial_merge_size' is 0"]),
        ("vision_config", {"window_size": 14}, ["'window_size' is 14, a window of one token takes 28 pixels"]),
        ("vision_config", {"hidden_act": "swoosh"}, ["transformers cannot build the tower", "swoosh"]),
    ],
)
def test_configs_that_do_not_fit_are_named(
    section: str, changes: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    directory = qwen().save(tmp_path)
    edit_section(directory, section, **changes)
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    problems = loader().describe(Checkpoint(directory)).problems
    assert problems
    assert all(problem in str(caught.value) for problem in problems)
    assert all(part in str(caught.value) for part in said), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"do_resize": False}, "refuses images of 3 × 2 pixels"),
        ({"patch_size": 28}, "cuts images into [[1, 2, 4]] patches"),
        ({"merge_size": 1}, "cuts images into"),
        ({"size": {"height": 56, "width": 56}}, "longest_edge"),
        ({"size": {"shortest_edge": "small", "longest_edge": 9000}}, "mend preprocessor_config.json"),
        ({"temporal_patch_size": 3}, "patches of 1764 values, the tower takes 1176"),
    ],
)
def test_a_processor_that_contradicts_the_tower_is_refused(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    directory = qwen().save(tmp_path)
    edit_config(directory, "preprocessor_config.json", **changes)
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert said in str(caught.value), str(caught.value)
