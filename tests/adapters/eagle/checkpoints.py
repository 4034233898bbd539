"""Small random EAGLE checkpoints in the forms in which such drafts are published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from attrs import evolve, field, frozen
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare
from torch import Tensor

HIDDEN = 32
VOCAB = 48
DRAFT_VOCAB = 20
TARGET_LAYERS = 8


@frozen(eq=False)
class Sample:
    """A draft under canonical names (``layers.0.*``), separate q, k, v, gate and up: what a reference computes with."""

    config: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    stored: Mapping[str, Tensor] = field(factory=dict[str, Tensor])
    """What is written where that differs from ``tensors`` (renamed, fused, without an optional part)."""

    def write(self, directory: Path, num_shards: int = 1) -> Path:
        """Write config and tensors to ``directory``."""
        write_checkpoint(directory, self.config, self.stored or self.tensors, num_shards)
        return directory

    def configured(self, **changes: object) -> Sample:
        """The same draft with keys of its config changed; ``None`` removes a key."""
        merged = {**self.config, **changes}
        return evolve(self, config={key: value for key, value in merged.items() if value is not None})

    def without(self, *names: str) -> Sample:
        """The same draft with tensors left out of the file."""
        kept = {name: value for name, value in (self.stored or self.tensors).items() if name not in names}
        return evolve(self, stored=kept)

    def storing(self, **tensors: Tensor) -> Sample:
        """The same draft with more or other tensors in the file (``__`` stands for a dot)."""
        added = {name.replace("__", "."): value for name, value in tensors.items()}
        return evolve(self, stored={**(self.stored or self.tensors), **added})

    def renamed(self, rename: Callable[[str], str]) -> Sample:
        """The same draft under other names in the file."""
        return evolve(self, stored={rename(name): value for name, value in (self.stored or self.tensors).items()})


def write_checkpoint(
    directory: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor], num_shards: int = 1
) -> None:
    """A directory with ``config.json`` and one or sharded safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    if num_shards == 1:
        save_file(contiguous, directory / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {key: contiguous[key] for key in list(contiguous)[shard::num_shards]}
        save_file(part, directory / name)
        weight_map |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def random_tensor(seed: str, *shape: int) -> Tensor:
    """Values that depend on ``seed`` and the shape only, of a size that keeps activations near 1."""
    generator = torch.Generator().manual_seed(sum(ord(c) * 31**i for i, c in enumerate(seed)) % 2**31)
    values = torch.randn(shape, generator=generator)
    return 1 + 0.2 * values if len(shape) == 1 and "norm" in seed else values / shape[-1] ** 0.5


def vocabulary_map(size: int = DRAFT_VOCAB, vocab: int = VOCAB) -> tuple[Tensor, Tensor]:
    """``d2t`` offsets and ``t2d`` marks of an ascending choice of ``size`` target ids."""
    generator = torch.Generator().manual_seed(7)
    target_ids = torch.randperm(vocab, generator=generator)[:size].sort().values
    marks = torch.zeros(vocab, dtype=torch.bool)
    marks[target_ids] = True
    return target_ids - torch.arange(size), marks


def layer_tensors(
    index: int,
    joined: bool,
    norms: Sequence[str],
    hidden: int = HIDDEN,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    inner: int = 24,
    bias: bool = False,
    qk_norm: bool = False,
) -> dict[str, Tensor]:
    """Tensors of one decoder layer under canonical names."""
    width, query, key = (2 * hidden if joined else hidden), heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, width),
        "self_attn.k_proj.weight": (key, width),
        "self_attn.v_proj.weight": (key, width),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    shapes |= {f"{norm}.weight": (hidden,) for norm in norms}
    if bias:
        shapes |= {"self_attn.q_proj.bias": (query,), "self_attn.k_proj.bias": (key,), "self_attn.v_proj.bias": (key,)}
        shapes |= {"self_attn.o_proj.bias": (hidden,)}
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    names = {f"layers.{index}.{name}": shape for name, shape in shapes.items()}
    return {name: random_tensor(name, *shape) for name, shape in names.items()}


def base_config(**changes: object) -> dict[str, object]:
    """The sizes that all samples share; ``None`` removes a key."""
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def midlayer(name: str) -> str:
    """The authors' name of a tensor of the only layer."""
    return name.replace("layers.0.", "midlayer.")


def authors_eagle3() -> Sample:
    """As the authors publish EAGLE-3: an ordinary architecture, no tap ids, no rope_theta, d2t and t2d."""
    d2t, t2d = vocabulary_map()
    tensors = {
        "fc.weight": random_tensor("fc.weight", HIDDEN, 3 * HIDDEN),
        **layer_tensors(0, joined=True, norms=("input_layernorm", "hidden_norm")),
        "norm.weight": random_tensor("norm.weight", HIDDEN),
        "lm_head.weight": random_tensor("lm_head.weight", DRAFT_VOCAB, HIDDEN),
        "d2t": d2t,
        "t2d": t2d,
    }
    sample = Sample(base_config(draft_vocab_size=DRAFT_VOCAB, tie_word_embeddings=False), tensors)
    return sample.renamed(midlayer)


def specforge_eagle3(ids: Sequence[int] = (2, 4, 5)) -> Sample:
    """SpecForge's form: tap ids under ``eagle_config``, no embedding."""
    nested = {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}
    return authors_eagle3().configured(
        architectures=["LlamaForCausalLMEagle3"], eagle_config=nested, target_hidden_size=HIDDEN
    )


def full_vocabulary(sample: Sample) -> Sample:
    """``sample`` with the whole vocabulary, and so without a map."""
    head = random_tensor("lm_head.weight", VOCAB, HIDDEN)
    stored = {**(sample.stored or sample.tensors), "lm_head.weight": head}
    whole = Sample(sample.config, {**sample.tensors, "lm_head.weight": head}, stored)
    return whole.without("d2t", "t2d").configured(draft_vocab_size=None)


def speculators_eagle3(**flags: object) -> Sample:
    """The form of vLLM's speculators: sizes in ``transformer_layer_config``, an embedding, the whole vocabulary."""
    whole = full_vocabulary(authors_eagle3())
    embedding = random_tensor("embed_tokens.weight", VOCAB, HIDDEN)
    config: dict[str, object] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"proposal_type": "greedy"}]},
        "transformer_layer_config": base_config(rope_theta=500.0),
        "draft_vocab_size": VOCAB,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
        **flags,
    }
    tensors = {**whole.tensors, "embed_tokens.weight": embedding}
    return Sample(config, tensors).without("d2t", "t2d")


def eagle1(bias: bool = True) -> Sample:
    """As the authors publish EAGLE-1: no input norm in the layer, no final norm, no head; ``bias`` absent means yes."""
    tensors = {
        "fc.weight": random_tensor("fc.weight", HIDDEN, 2 * HIDDEN),
        **layer_tensors(0, joined=False, norms=()),
    }
    if not bias:
        return Sample(base_config(bias=False), tensors)
    return Sample(base_config(), {**tensors, "fc.bias": random_tensor("fc.bias", HIDDEN)})


def fused(sample: Sample) -> Sample:
    """``sample`` with ``qkv_proj`` and ``gate_up_proj`` as serving engines store them."""
    stored = dict(sample.stored or sample.tensors)
    for kind in ("weight", "bias"):
        for target, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
            for name in [name for name in stored if name.endswith(f"{parts[0]}.{kind}")]:
                taken = [stored.pop(name.replace(parts[0], part)) for part in parts]
                stored[name.replace(parts[0], target)] = torch.cat(taken)
    return evolve(sample, stored=stored)
