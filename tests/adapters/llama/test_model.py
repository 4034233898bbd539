"""The family equals transformers in every variant, in prefill and in cached decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outrider.types import HiddenTap
from outrider_adapters.pairs import tiny
from tests.adapters.llama.reference import HubModel, Sequence, edit_config, load, read_tensors, tokens, write_tensors

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1000.0}

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama, one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama, kv head for every head": ("llama", {"num_key_value_heads": 4}),
    "llama, head size of its own": ("llama", {"head_dim": 20}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, attention bias only": ("llama", {"attention_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}),
    "llama, dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 16},
    ),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, yarn with mscale": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16.0, "beta_slow": 2.0}},
    ),
    "llama, yarn with attention factor": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
    "llama, yarn untruncated": ("llama", {"rope_parameters": {**YARN, "truncate": False}}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, tanh gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, new gelu": ("llama", {"hidden_act": "gelu_new"}),
    "llama, quick gelu": ("llama", {"hidden_act": "quick_gelu"}),
    "llama, relu": ("llama", {"hidden_act": "relu"}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 5}),
    "mistral, window of two": ("mistral", {"sliding_window": 2, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen2, window of later layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen2, window not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0}),
    "qwen2, layer types": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 24, "num_key_value_heads": 4}),
    "qwen3, biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3, window": (
        "qwen3",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    ),
    "qwen3, dynamic": (
        "qwen3",
        {
            "head_dim": 8,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0},
            "max_position_embeddings": 20,
        },
    ),
}

# Longer than every window and every original length; then one token at a time, then several at once.
LONG = [tokens(22), *([token] for token in tokens(5, seed=1)), tokens(4, seed=2)]
# Starts below the original length of dynamic rope and grows beyond it.
SHORT = [tokens(11), *([token] for token in tokens(12, seed=1))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_in_prefill_and_decode(variant: str, tmp_path: Path) -> None:
    model_type, settings = VARIANTS[variant]
    model = HubModel(model_type, **settings)
    target = load(model.save(tmp_path))
    for pieces in (LONG, SHORT):
        expected = model.run(pieces)
        sequence = Sequence(target)
        for piece, output in zip(pieces, expected, strict=True):
            torch.testing.assert_close(sequence.logits(piece), output.logits, atol=1e-4, rtol=1e-4)


def test_the_comparison_sees_a_wrong_window(tmp_path: Path) -> None:
    model = HubModel("mistral", sliding_window=5)
    directory = model.save(tmp_path)
    edit_config(directory, sliding_window=6)
    found = Sequence(load(directory)).logits(LONG[0])
    expected = model.run(LONG[:1])[0].logits
    torch.testing.assert_close(found[:5], expected[:5], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found[5:], expected[5:], atol=1e-2)


def test_taps_are_the_residual_streams_of_transformers_in_the_order_asked(tmp_path: Path) -> None:
    model = HubModel("qwen3", head_dim=8)
    target = load(model.save(tmp_path))
    order = (HiddenTap(2), HiddenTap.final_norm(), HiddenTap(0), HiddenTap(2), HiddenTap(1), HiddenTap(3))
    output = Sequence(target, order).run(LONG[0])
    assert len(output.taps) == len(order)
    states = model.run(LONG[:1])[0].hidden_states
    for tap, found in zip(order, output.taps, strict=True):
        if tap.boundary is None:
            # transformers' last hidden state is taken after the final norm.
            torch.testing.assert_close(found, states[-1], atol=1e-4, rtol=1e-4)
        elif tap.boundary < 3:
            torch.testing.assert_close(found, states[tap.boundary], atol=1e-4, rtol=1e-4)
    assert torch.equal(output.taps[1], output.hidden)
    before_norm = output.taps[5]
    weight = read_tensors(tmp_path)["model.norm.weight"]
    normed = before_norm * (before_norm.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    torch.testing.assert_close(normed, output.hidden, atol=1e-5, rtol=1e-5)


def test_taps_stay_what_they_were_while_later_layers_run(tmp_path: Path) -> None:
    target = load(HubModel("llama").save(tmp_path))
    alone = [Sequence(target, (HiddenTap(boundary),)).run(LONG[0]).taps[0].clone() for boundary in range(4)]
    together = Sequence(target, tuple(HiddenTap(boundary) for boundary in range(4))).run(LONG[0]).taps
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_attend_is_called_once_for_each_layer_in_order(tmp_path: Path) -> None:
    target = load(HubModel("llama").save(tmp_path))
    sequence = Sequence(target)
    sequence.run(LONG[0])
    assert sequence.attend.calls == [0, 1, 2]


def test_fused_tensor_names_give_the_same_model(tmp_path: Path) -> None:
    model = HubModel("llama", attention_bias=True, mlp_bias=True)
    model.save(tmp_path)
    tensors = read_tensors(tmp_path)
    for layer in range(3):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"model.layers.{layer}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            tensors[f"model.layers.{layer}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
            parts = [tensors.pop(f"model.layers.{layer}.mlp.{name}_proj.{kind}") for name in ("gate", "up")]
            tensors[f"model.layers.{layer}.mlp.gate_up_proj.{kind}"] = torch.cat(parts)
    write_tensors(tmp_path, tensors)
    expected = model.run(LONG[:1])[0].logits
    torch.testing.assert_close(Sequence(load(tmp_path)).logits(LONG[0]), expected, atol=1e-4, rtol=1e-4)


def test_shards_and_names_without_prefix_give_the_same_model(tmp_path: Path) -> None:
    model = HubModel("qwen2")
    expected = model.run(LONG[:1])[0].logits
    sharded = model.save(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    bare = model.save(tmp_path / "bare")
    tensors = read_tensors(bare)
    write_tensors(bare, {name.removeprefix("model."): tensors[name] for name in tensors})
    for directory in (sharded, bare):
        torch.testing.assert_close(Sequence(load(directory)).logits(LONG[0]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_close_to_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    directory = HubModel("qwen3", head_dim=8).save(tmp_path)
    exact = Sequence(load(directory)).logits(LONG[0])
    target = load(directory, dtype)
    found = Sequence(target).logits(LONG[0])
    assert target.stack.spec.dtype == found.dtype == dtype
    tolerance = {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float64: 1e-4}[dtype]
    assert float((found.float() - exact).square().mean().sqrt()) < tolerance * float(exact.square().mean().sqrt())


def test_the_trained_pair_continues_as_computed_without_a_cache() -> None:
    target = load(tiny().target)
    cases = (Path(__file__).parents[2] / "cases" / "greedy.jsonl").read_text().splitlines()
    with torch.inference_mode():
        for line in cases[:2]:
            case = json.loads(line)
            sequence = Sequence(target)
            found: list[int] = []
            piece: list[int] = case["prompt_token_ids"]
            for _ in range(24):
                piece = [int(sequence.logits(piece)[-1].argmax())]
                found += piece
            assert found == case["token_ids"][:24]
