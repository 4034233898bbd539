"""LLaVA checkpoints: every published spelling gives the same model, variants equal transformers, faults are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import CheckpointError, InputError
from outrider.loop.build import EngineOptions
from outrider.types.request import Request
from outrider_adapters.llama import LlamaLoader
from outrider_adapters.llava import loader
from tests.adapters.llama.reference import edit_config, read_tensors, write_tensors
from tests.adapters.media.models import IDS, VOCAB_SIZE, check_logits, edit_section, llava, load, media_of
from tests.adapters.media.pictures import png
from tests.support.engines import drive, engine_of


@pytest.mark.parametrize("decoder", ["language_model.model.", "model.language_model.", "language_model."])
@pytest.mark.parametrize("outer", ["", "model."])
@pytest.mark.parametrize("inner", ["", "vision_model."])
def test_every_spelling_of_the_tensors_is_the_same_model(decoder: str, outer: str, inner: str, tmp_path: Path) -> None:
    hub = llava()
    directory = hub.save(tmp_path)
    head = "language_model.lm_head.weight" if decoder == "language_model.model." else "lm_head.weight"
    renamed: dict[str, Tensor] = {}
    for name, tensor in hub.module.state_dict().items():
        plain = name.removeprefix("model.").replace("vision_model.", "")
        part, _, rest = plain.partition(".")
        prefix = {"language_model": decoder, "vision_tower": f"{outer}vision_tower.{inner}"}.get(
            part, f"{outer}{part}."
        )
        renamed[head if name == "lm_head.weight" else prefix + rest] = tensor.contiguous()
    # As old files do.
    renamed[f"{outer}vision_tower.{inner}embeddings.position_ids"] = torch.arange(10)[None]
    write_tensors(directory, renamed)
    check_logits(hub, directory)


@pytest.mark.parametrize(
    "settings",
    [
        {"tower": "siglip_vision_model", "vision_feature_select_strategy": "full"},
        {"tower": "siglip_vision_model", "vision_feature_layer": -1},
        {"vision_feature_layer": -1},
        {"vision_feature_layer": 1},
        {"vision_feature_layer": [-2, 1, -1]},
        {"vision_feature_select_strategy": "full"},
        {"multimodal_projector_bias": False, "projector_hidden_act": "silu"},
        {"text": {"tie_word_embeddings": True}, "tie_word_embeddings": True},
        {"text": {"model_type": "mistral", "sliding_window": 6}},
        {"text": {"model_type": "qwen2"}},
        {"text": {"model_type": "qwen3", "head_dim": 8}},
    ],
)
def test_variants_equal_transformers(settings: dict[str, object], tmp_path: Path) -> None:
    hub = llava(**settings)  # type: ignore[arg-type]  # one dict for parameters of different types
    check_logits(hub, hub.save(tmp_path))


def test_what_the_config_leaves_out_is_what_its_class_says(tmp_path: Path) -> None:
    """The published config of LLaVA 1.5 names hardly any size of its decoder."""
    directory = llava().save(tmp_path)
    edit_section(directory, "text_config", intermediate_size=...)
    with pytest.raises(CheckpointError, match=r"expected \[11008, 32\]"):
        load(directory)


def test_both_names_of_the_placeholder_are_read(tmp_path: Path) -> None:
    hub = llava()
    directory = hub.save(tmp_path)
    edit_config(directory, image_token_index=..., image_token_id=hub.image_id)
    check_logits(hub, directory)


def test_the_processor_may_stand_in_the_config_of_the_whole(tmp_path: Path) -> None:
    hub = llava()
    directory = hub.save(tmp_path)
    own = directory / "preprocessor_config.json"
    section: object = json.loads(own.read_text())
    own.unlink()
    edit_config(directory, "processor_config.json", image_processor=section, processor_class="LlavaProcessor")
    check_logits(hub, directory)


def test_a_checkpoint_is_recognised_and_described(tmp_path: Path) -> None:
    checkpoint = Checkpoint(llava().save(tmp_path))
    assert loader().refuses(checkpoint) is None
    assert LlamaLoader().refuses(checkpoint) is not None
    description = loader().describe(checkpoint)
    assert description.problems == ()
    facts = dict(description.facts)
    assert facts["tower"] == "clip_vision_model, 3 layers"
    assert facts["tokens per image"] == "9"
    assert facts["decoder"] == "llama"
    assert int(facts["parameters"].replace(",", "")) == sum(t.numel() for t in read_tensors(tmp_path).values())


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    directory = llava().save(tmp_path)
    edit_config(directory, architectures=["LlavaNextForConditionalGeneration"], model_type="llava_next")
    assert loader().refuses(Checkpoint(directory)) == (
        "its architecture is LlavaNextForConditionalGeneration, not LlavaForConditionalGeneration"
    )


def refusal(directory: Path) -> str:
    """Why the checkpoint cannot be loaded; `describe` must say the same without loading."""
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    problems = loader().describe(Checkpoint(directory)).problems
    assert problems
    assert all(problem in str(caught.value) for problem in problems)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("", {"vision_feature_layer": [-2, 9]}, ["'vision_feature_layer' names [9]", "-4 to 3"]),
        ("", {"projector_hidden_act": "swoosh"}, ["swoosh", "gelu"]),
        ("", {"quantization_config": {"quant_method": "fp8"}}, ["quantized", "fp8"]),
        ("vision_config", {"model_type": "vit"}, ["'model_type' is 'vit'", "clip_vision_model, siglip_vision_model"]),
        ("text_config", {"model_type": "gpt2"}, ["'model_type' is 'gpt2'", "llama, mistral, qwen2, qwen3"]),
        ("vision_config", {"image_size": 56}, ["[1, 3, 42, 42]", "[1, 3, 56, 56]", "crop_size"]),
        ("vision_config", {"patch_size": 0, "num_attention_heads": -2}, ["2 problems", "'patch_size' is 0", "is -2"]),
        ("vision_config", {"hidden_act": "swoosh"}, ["vision_config: transformers cannot build the tower", "swoosh"]),
        ("vision_config", {"intermediate_size": 44}, ["mlp.fc1.weight", "[40, 32]", "[44, 32]"]),
        ("vision_config", {"num_hidden_layers": 4}, ["layers.3.", "is missing"]),
        ("vision_config", {"num_hidden_layers": 2}, ["layers.2.", "not used by this model"]),
        ("text_config", {"hidden_size": 64}, ["q_proj.weight", "[32, 32]", "[32, 64]", "and 5 more tensors"]),
    ],
)
def test_configs_that_do_not_fit_are_named(
    section: str, changes: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    directory = llava().save(tmp_path)
    if section:
        edit_section(directory, section, **changes)
    else:
        edit_config(directory, **changes)
    message = refusal(directory)
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("preprocessor_config.json", None, "no image processor was found"),
        (
            "preprocessor_config.json",
            {"image_processor_type": "Emu3ImageProcessor"},
            "is Emu3ImageProcessor, allowed are",
        ),
        ("preprocessor_config.json", {}, "'feature_extractor_type' is missing"),
        (
            "preprocessor_config.json",
            {"image_processor_type": "CLIPImageProcessor", "size": {"a": 1}},
            "image processor",
        ),
    ],
)
def test_processors_that_cannot_be_used_are_named(
    name: str, content: dict[str, object] | None, said: str, tmp_path: Path
) -> None:
    directory = llava().save(tmp_path)
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_text(json.dumps(content))
    assert said in refusal(directory)


@pytest.mark.parametrize("part", ["multi_modal_projector.linear_1.bias", "post_layernorm.weight", "lm_head.weight"])
def test_tensors_that_are_missing_or_too_many_are_named_together(part: str, tmp_path: Path) -> None:
    directory = llava().save(tmp_path)
    tensors = read_tensors(directory)
    gone = next(name for name in tensors if name.endswith(part))
    tensors["multi_modal_projector.linear_3.weight"] = tensors.pop(gone)
    write_tensors(directory, tensors)
    message = refusal(directory)
    assert "is missing" in message
    assert part in message
    assert "'multi_modal_projector.linear_3.weight'" in message


def move_image_token(directory: Path, text: str) -> None:
    """Let ``text`` have the tokenizer's id of "<image>", which is then an unknown word."""
    file = directory / "tokenizer.json"
    file.write_text(file.read_text().replace('"<image>"', f'"{text}"'))


def test_a_placeholder_that_the_tokenizer_knows_under_another_id_is_refused(tmp_path: Path) -> None:
    """Or ordinary words would count as images, and images never find a place."""
    directory = llava().save(tmp_path)
    edit_config(directory, image_token_index=20)
    message = refusal(directory)
    said = ["images stand at token id 20", f"the tokenizer's '<image>' is id {IDS['<image>']}", "'image_token_index'"]
    assert all(part in message for part in said), message
    # The processor may call it something else.
    move_image_token(directory, "<picture>")
    edit_config(directory, "tokenizer_config.json", image_token="<picture>")
    assert "the tokenizer's '<picture>' is id 2" in refusal(directory)
    edit_config(directory, image_token_index=IDS["<image>"])
    assert loader().describe(Checkpoint(directory)).problems == ()


def test_an_image_whose_scaled_form_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    hub = llava()
    directory = hub.save(tmp_path)
    media = media_of(load(directory))
    assert len(media.prepare([hub.image_id], [png(10000, 10)]).token_ids) == 9
    with pytest.raises(InputError) as caught:
        media.prepare([hub.image_id], [png(200000, 1)])
    said = ["image 1 of 1 (200000 × 1 pixels)", "200000 times", "352800000 pixels", "at most 268435456"]
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_a_placeholder_above_the_embedding_gives_the_same_text(tmp_path: Path) -> None:
    """Checkpoints that were trained before the embedding was enlarged for the placeholder."""
    hub = llava()
    directory = hub.save(tmp_path)
    image = png(60, 60, 4)
    usual = media_of(load(directory)).prepare([20, hub.image_id, 21], [image])
    edit_config(directory, image_token_index=VOCAB_SIZE + 5)
    # A tokenizer that has no placeholder of its own: "<image>" is no single token to it.
    move_image_token(directory, "<elsewhere>")
    target = load(directory)
    above = media_of(target).prepare([20, VOCAB_SIZE + 5, 21], [image])
    assert torch.equal(above.embeds, usual.embeds)
    engine = engine_of(target, NgramBuilder(2), EngineOptions(page_size=4, max_length=60))
    request = engine.submit(Request(above.token_ids, max_new_tokens=12, eos_ids=()), above)
    assert drive(engine)[request].token_ids == hub.generate(usual.token_ids, [image], 12)
