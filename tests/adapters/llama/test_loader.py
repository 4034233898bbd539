"""What the loader accepts, refuses, says and keeps in memory."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import LoadOptions
from outrider_adapters.llama import LlamaLoader, loader
from outrider_adapters.pairs import tiny
from tests.adapters.llama.reference import (
    CPU,
    HubModel,
    Sequence,
    edit_config,
    load,
    read_tensors,
    tokens,
    write_tensors,
)

PROMPT = tokens(9)


def test_the_entry_point_gives_this_loader() -> None:
    (entry,) = [point for point in entry_points(group="outrider.targets") if point.name == "llama"]
    assert entry.load() is loader
    assert loader().refuses(Checkpoint(tiny().target)) is None


def test_tied_embedding_and_head_are_one_tensor_and_weights_are_in_memory_once(tmp_path: Path) -> None:
    target = load(HubModel("llama", tie_word_embeddings=True).save(tmp_path))
    assert target.weights is not None
    assert target.weights.head is target.weights.embedding
    ids = torch.tensor(PROMPT)
    assert torch.equal(target.stack.embed(ids), target.weights.embedding[ids])
    untied = load(HubModel("llama").save(tmp_path / "untied"))
    assert untied.weights is not None
    assert untied.weights.head.data_ptr() != untied.weights.embedding.data_ptr()
    assert not untied.weights.embedding.requires_grad


def test_loaded_weights_do_not_change_with_the_file(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    target = load(directory)
    before = Sequence(target).logits(PROMPT)
    file = directory / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(-4096, 2)
        opened.write(bytes(4096))
    assert torch.equal(Sequence(target).logits(PROMPT), before)


def test_a_stored_copy_of_a_tied_head_is_not_a_second_tensor(tmp_path: Path) -> None:
    directory = HubModel("llama", tie_word_embeddings=True).save(tmp_path)
    expected = Sequence(load(directory)).logits(PROMPT)
    tensors = read_tensors(directory)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write_tensors(directory, tensors)
    target = load(directory)
    assert target.weights is not None
    assert target.weights.head is target.weights.embedding
    assert torch.equal(Sequence(target).logits(PROMPT), expected)


def test_a_stored_head_that_differs_from_a_tied_embedding_is_used_and_noted(tmp_path: Path) -> None:
    model = HubModel("llama")
    directory = model.save(tmp_path)
    edit_config(directory, tie_word_embeddings=True)
    target = load(directory)
    torch.testing.assert_close(Sequence(target).logits(PROMPT), model.run([PROMPT])[0].logits, atol=1e-4, rtol=1e-4)
    assert any("differs from the embedding" in note for note in target.notes)


def test_the_tensors_decide_the_number_of_layers_and_the_disagreement_is_noted(tmp_path: Path) -> None:
    directory = HubModel("qwen2").save(tmp_path)
    expected = Sequence(load(directory)).logits(PROMPT)
    edit_config(directory, num_hidden_layers=7, layer_types=...)
    target = load(directory)
    assert target.stack.spec.num_layers == 3
    assert torch.equal(Sequence(target).logits(PROMPT), expected)
    assert any("num_hidden_layers 7" in note and "3 layers" in note for note in target.notes)


def test_frequencies_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    tensors = read_tensors(directory)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    write_tensors(directory, tensors)
    load(directory)


def test_progress_counts_every_tensor_once(tmp_path: Path) -> None:
    directory = HubModel("qwen3", head_dim=8).save(tmp_path)
    seen: list[tuple[int, int]] = []
    options = LoadOptions(CPU, progress=lambda done, total: seen.append((done, total)))
    LlamaLoader().load(Checkpoint(directory), options)
    total = len(read_tensors(directory))
    assert seen == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_is_the_configs_and_else_the_stored_one(key: str, tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    edit_config(directory, dtype=..., torch_dtype=...)
    assert load(directory, None).stack.spec.dtype == torch.float32
    edit_config(directory, **{key: "bfloat16"})
    target = load(directory, None)
    assert target.weights is not None
    assert target.stack.spec.dtype == target.weights.embedding.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [(2, ..., (2,)), ([2, 5], ..., (2, 5)), (2, [5, 2], (5, 2)), (None, 4, (4,)), (2, None, (2,)), (None, ..., ())],
)
def test_end_ids_come_from_the_generation_config_and_else_the_config(
    own: object, generation: object, expected: tuple[int, ...], tmp_path: Path
) -> None:
    directory = HubModel("llama").save(tmp_path)
    edit_config(directory, eos_token_id=own)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if generation is not ...:
        edit_config(directory, "generation_config.json", eos_token_id=generation)
    assert load(directory).eos_ids == expected


def refusal(directory: Path) -> str:
    """Why the checkpoint cannot be loaded; `describe` must say the same without loading."""
    checkpoint = Checkpoint(directory)
    assert LlamaLoader().refuses(checkpoint) is None
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    problems = LlamaLoader().describe(checkpoint).problems
    assert problems
    assert all(problem in str(caught.value) for problem in problems)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, ["quantized", "awq", "unquantized"]),
        ({"hidden_act": "swoosh"}, ["swoosh", "silu", "gelu"]),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, ["longrope", "llama3", "yarn"]),
        ({"rope_scaling": {"type": "linear"}, "rope_parameters": ...}, ["factor", "missing"]),
        ({"intermediate_size": 50}, ["model.layers.0.mlp.gate_proj.weight", "[48, 32]", "[50, 32]"]),
        ({"vocab_size": 100}, ["model.embed_tokens.weight", "[97, 32]", "[100, 32]", "lm_head.weight"]),
        ({"attention_bias": True}, ["model.layers.0.self_attn.q_proj.bias", "missing"]),
        ({"num_key_value_heads": 3}, ["4 query heads", "3 key-value heads"]),
        ({"hidden_size": ...}, ["hidden_size", "missing"]),
        ({"hidden_size": "wide"}, ["hidden_size", "'wide'"]),
        ({"dtype": "float8_e4m3fn"}, ["float8_e4m3fn", "bfloat16"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps", "-1.0"]),
        ({"max_position_embeddings": 1}, ["max_position_embeddings", "1", "at least 2"]),
        ({"rope_theta": 0, "rope_parameters": ...}, ["rope_theta", "above 1"]),
        ({"hidden_act": "swoosh", "vocab_size": -1}, ["swoosh", "vocab_size", "-1", "2 problems"]),
    ],
)
def test_faulty_configs_are_refused_with_both_sides(
    changes: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    directory = HubModel("llama").save(tmp_path)
    edit_config(directory, **changes)
    message = refusal(directory)
    assert [word for word in said if word not in message] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, ["linear_attention", "allowed"]),
        ({"layer_types": ["full_attention"] * 2}, ["2 layers", "3"]),
        ({"layer_types": ["sliding_attention"] * 3}, ["use_sliding_window"]),
        ({"use_sliding_window": True, "sliding_window": 0}, ["sliding_window", "0"]),
    ],
)
def test_faulty_windows_are_refused(changes: dict[str, object], said: list[str], tmp_path: Path) -> None:
    directory = HubModel("qwen2").save(tmp_path)
    edit_config(directory, **changes)
    message = refusal(directory)
    assert [word for word in said if word not in message] == []


def test_missing_and_unused_tensors_are_named_together(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    tensors = read_tensors(directory)
    del tensors["model.norm.weight"]
    tensors["model.layers.1.extra.weight"] = torch.ones(2)
    tensors["model.layers.0.self_attn.o_proj.weight"] = torch.ones(32, 31)
    write_tensors(directory, tensors)
    message = refusal(directory)
    for said in ("'model.norm.weight' or 'norm.weight' is missing", "model.layers.1.extra.weight", "[32, 31]"):
        assert said in message
    assert "3 problems" in message


def test_a_missing_head_that_no_rule_supplies_is_refused(tmp_path: Path) -> None:
    directory = HubModel("llama", tie_word_embeddings=True).save(tmp_path)
    edit_config(directory, tie_word_embeddings=False)
    message = refusal(directory)
    assert "lm_head.weight" in message
    assert "tie_word_embeddings" in message


def test_whole_number_weights_are_refused(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    tensors = read_tensors(directory)
    tensors["model.norm.weight"] = torch.ones(32, dtype=torch.int8)
    write_tensors(directory, tensors)
    message = refusal(directory)
    assert "int8" in message
    assert "quantized" in message


def test_faults_are_found_before_any_progress(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    tensors = read_tensors(directory)
    del tensors["model.norm.weight"]
    write_tensors(directory, tensors)
    seen: list[int] = []
    options = LoadOptions(CPU, progress=lambda done, total: seen.append(done))
    with pytest.raises(CheckpointError):
        LlamaLoader().load(Checkpoint(directory), options)
    assert seen == []


def test_a_tokenizer_that_cannot_be_read_is_described(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    (directory / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: not a readable tokenizer" in refusal(directory)


def test_drafts_given_as_targets_are_told_apart(tmp_path: Path) -> None:
    eagle3, eagle1 = (Checkpoint(draft) for draft in tiny().drafts)
    reason = LlamaLoader().refuses(eagle3)
    assert reason is not None
    assert "LlamaForCausalLMEagle3" in reason
    assert "draft" in reason
    # The authors' own heads call themselves LlamaForCausalLM: their tensors tell.
    for original in (eagle3, eagle1):
        directory = tmp_path / original.name
        directory.mkdir()
        config = json.loads((original.directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
        write_tensors(directory, {name: original.files.read(name) for name in original.tensors})
        reason = LlamaLoader().refuses(Checkpoint(directory))
        assert reason is not None
        assert "EAGLE draft" in reason


def test_other_architectures_and_headless_directories_are_refused(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    edit_config(directory, architectures=["GPT2LMHeadModel"])
    reason = LlamaLoader().refuses(Checkpoint(directory))
    assert reason is not None
    assert "GPT2LMHeadModel" in reason
    assert "LlamaForCausalLM" in reason
    edit_config(directory, architectures=...)
    assert LlamaLoader().refuses(Checkpoint(directory)) is None
    tensors = read_tensors(directory)
    del tensors["model.embed_tokens.weight"]
    write_tensors(directory, tensors)
    reason = LlamaLoader().refuses(Checkpoint(directory))
    assert reason is not None
    assert "embed_tokens" in reason


def test_the_trained_target_is_described_without_loading() -> None:
    description = LlamaLoader().describe(Checkpoint(tiny().target))
    assert description.problems == ()
    assert dict(description.facts) == {
        "architecture": "LlamaForCausalLM",
        "parameters": "6,951,168",
        "dtype": "bfloat16",
        "layers": "8",
        "hidden size": "256",
        "feed-forward size": "704 (silu)",
        "attention": "4 query heads, 2 kv heads of 64",
        "vocabulary": "4096",
        "context": "2048",
        "rope": "default, theta 10000",
        "window": "none",
        "head": "tied to the embedding",
        "end of sequence": "0",
    }


def test_windows_and_norms_are_described(tmp_path: Path) -> None:
    settings: dict[str, object] = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}
    directory = HubModel("qwen3", head_dim=8, attention_bias=True, **settings).save(tmp_path)
    facts = dict(LlamaLoader().describe(Checkpoint(directory)).facts)
    assert facts["window"] == "3 positions in 1 of 3 layers"
    assert facts["query/key norm"] == "per head"
    assert facts["biases"] == "qkv, o"


def test_a_mistral_config_that_does_not_mention_the_window_has_its_default(tmp_path: Path) -> None:
    directory = HubModel("mistral", sliding_window=None).save(tmp_path)
    assert load(directory).stack.spec.layers[0].window is None
    edit_config(directory, sliding_window=...)
    assert load(directory).stack.spec.layers[0].window == 4096


def test_a_window_that_the_architecture_does_not_have_is_noted(tmp_path: Path) -> None:
    directory = HubModel("llama").save(tmp_path)
    edit_config(directory, sliding_window=8)
    target = load(directory)
    assert target.stack.spec.layers[0].window is None
    assert any("sliding_window 8 is ignored" in note for note in target.notes)
