"""`LlamaLoader`: recognises, explains and loads checkpoints of the Llama family."""

from __future__ import annotations

import re

import torch

from outrider.checkpoint import Checkpoint, TensorReader
from outrider.errors import CheckpointError
from outrider.interfaces import Description, LoadOptions, Target, TargetLoader
from outrider.types import ModelSpec, PositionScheme, RopeSpec
from outrider_adapters.codec import read_codec
from outrider_adapters.llama.config import FAMILIES, LlamaConfig, find_family, read_config
from outrider_adapters.llama.model import build_stack
from outrider_adapters.nn import WeightLoader

__all__ = ["LlamaLoader", "loader"]

_META = torch.device("meta")
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")
_HEADS = ("lm_head.weight", "model.lm_head.weight")
_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_DRAFT_PART = re.compile(r"(?:model\.|draft_model\.)?(?:fc\.weight|midlayer\.)")
_DRAFT_WORDS = ("eagle", "speculator", "draft", "medusa", "mtp")


def loader() -> TargetLoader:
    """The loader of Llama-family targets (entry point ``outrider.targets``)."""
    return LlamaLoader()


class LlamaLoader(TargetLoader):
    """Loads Llama, Mistral, Qwen2 and Qwen3 from a Hugging Face directory with one or sharded safetensors."""

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` for a full model of the family, else why it is not; drafts given as targets are told apart."""
        architectures = checkpoint.architectures
        if find_family(architectures, checkpoint.config.get_optional_str("model_type")) is None:
            found = ", ".join(architectures) or "not named"
            reason = f"its architecture is {found}, not one of {', '.join(FAMILIES)}"
            if any(word in found.lower() for word in _DRAFT_WORDS):
                reason += "; that is a draft, which goes beside a target, not in its place"
            return reason
        part = next((name for name in checkpoint.tensors if _DRAFT_PART.match(name)), None)
        if part is not None:
            return f"it holds '{part}', so it is an EAGLE draft, which goes beside a target, not in its place"
        if not any(name in checkpoint.tensors for name in _EMBEDDINGS):
            return f"it holds no embedding (tensor {' or '.join(_EMBEDDINGS)}), so it is not a full model"
        return None

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Target:
        """The model on ``options.device``; its weights are in memory once, copied straight from the mapped files.

        Raises:
            CheckpointError: of the family, but faulty; found before any weight is read, all faults at once.
        """
        config = _read(checkpoint)
        notes = list(config.notes)
        own_head = _has_own_head(checkpoint, config, notes)
        dtype = options.dtype or config.dtype or _stored_dtype(checkpoint)
        title = f"{checkpoint.directory}: the tensors do not fit config.json"
        _rehearse(checkpoint, config, own_head).finish(title)
        weights = _weight_loader(checkpoint, options.device, dtype, options)
        with torch.no_grad():
            stack = build_stack(config, _spec(checkpoint, config, options.device, dtype), weights, own_head)
        weights.finish(title)
        codec = read_codec(checkpoint)
        notes.extend(codec.notes if codec is not None else ("no tokenizer was found, only token ids can be used",))
        tokenizer = checkpoint.directory / "tokenizer.json"
        return Target(
            stack,
            weights=stack.weights,
            codec=codec,
            eos_ids=config.eos_ids,
            tokenizer_file=tokenizer if tokenizer.is_file() else None,
            notes=tuple(notes),
        )

    def describe(self, checkpoint: Checkpoint) -> Description:
        """What the checkpoint is and what is wrong with it, from config and tensor headers alone."""
        family = find_family(checkpoint.architectures, checkpoint.config.get_optional_str("model_type"))
        kind = f"target ({family.model_type if family is not None else 'unknown'})"
        try:
            config = _read(checkpoint)
            rehearsal = _rehearse(checkpoint, config, own_head=not config.tied)
        except CheckpointError as error:
            return Description(kind, (), problems=(str(error),))
        dtype = config.dtype or _stored_dtype(checkpoint)
        facts = _facts(config, dtype, rehearsal.num_parameters)
        return Description(kind, facts, config.notes, (*rehearsal.problems(), *_codec_problems(checkpoint)))


def _codec_problems(checkpoint: Checkpoint) -> tuple[str, ...]:
    try:
        read_codec(checkpoint)
    except CheckpointError as error:
        return (str(error),)
    return ()


def _read(checkpoint: Checkpoint) -> LlamaConfig:
    stored = [int(match[1]) for name in checkpoint.tensors if (match := _LAYER.match(name))]
    if not stored:
        raise CheckpointError(f"{checkpoint.directory}: no tensor of a layer (layers.0.…) was found")
    return read_config(checkpoint.config, checkpoint.optional_json("generation_config.json"), max(stored) + 1)


def _spec(checkpoint: Checkpoint, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> ModelSpec:
    return ModelSpec(
        name=checkpoint.name,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.layers,
        max_positions=config.max_positions,
        dtype=dtype,
        device=device,
        positions=PositionScheme(needs_lengths=config.rope.kind == "dynamic"),
        rope=config.rope,
    )


def _weight_loader(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, options: LoadOptions | None
) -> WeightLoader:
    weights = WeightLoader(checkpoint.reader(), device, dtype, options.progress if options is not None else None)
    # Old checkpoints store the rope frequencies, which follow from the config.
    weights.ignore_ending("rotary_emb.inv_freq")
    return weights


def _rehearse(checkpoint: Checkpoint, config: LlamaConfig, own_head: bool) -> WeightLoader:
    """The account of a load that reads nothing: its faults and its number of parameters."""
    weights = _weight_loader(checkpoint, _META, torch.float32, None)
    build_stack(config, _spec(checkpoint, config, _META, torch.float32), weights, own_head)
    if not config.tied and not any(name in checkpoint.tensors for name in _HEADS):
        weights.problem(
            "tie_word_embeddings is false, so the head must be there; if it is the embedding, say "
            '"tie_word_embeddings": true in config.json'
        )
    return weights


def _has_own_head(checkpoint: Checkpoint, config: LlamaConfig, notes: list[str]) -> bool:
    """Whether the head is a tensor of its own; a stored head that differs from a tied embedding is, as in transformers."""
    stored = next((name for name in _HEADS if name in checkpoint.tensors), None)
    if not config.tied:
        return True
    if stored is None or _same(checkpoint.reader(), stored):
        return False
    notes.append(f"tie_word_embeddings is true, but '{stored}' differs from the embedding; the stored head is used")
    return True


def _same(reader: TensorReader, head: str) -> bool:
    embedding = next(name for name in _EMBEDDINGS if reader.has(name))
    if reader.info(head).shape != reader.info(embedding).shape:
        return False
    return torch.equal(reader.take(head), reader.take(embedding))


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    return next(checkpoint.tensors[name].dtype for name in _EMBEDDINGS if name in checkpoint.tensors)


def _facts(config: LlamaConfig, dtype: torch.dtype, num_parameters: int) -> tuple[tuple[str, str], ...]:
    first = config.layers[0]
    bias = [name for name, there in (("qkv", config.qkv_bias), ("o", config.o_bias), ("mlp", config.mlp_bias)) if there]
    facts = [
        ("architecture", config.family.architecture),
        ("parameters", f"{num_parameters:,}"),
        ("dtype", str(dtype).removeprefix("torch.")),
        ("layers", str(len(config.layers))),
        ("hidden size", str(config.hidden_size)),
        ("feed-forward size", f"{config.intermediate_size} ({config.activation})"),
        ("attention", f"{first.num_heads} query heads, {first.num_kv_heads} kv heads of {first.head_dim}"),
        ("vocabulary", str(config.vocab_size)),
        ("context", str(config.max_positions)),
        ("rope", _rope_fact(config.rope)),
        ("window", _window_fact(config)),
        ("head", "tied to the embedding" if config.tied else "own"),
        ("end of sequence", ", ".join(map(str, config.eos_ids)) or "none"),
    ]
    if bias:
        facts.append(("biases", ", ".join(bias)))
    if config.family.qk_norm:
        facts.append(("query/key norm", "per head"))
    return tuple(facts)


def _rope_fact(rope: RopeSpec) -> str:
    text = f"{rope.kind}, theta {rope.theta:g}"
    return text if rope.kind == "default" else f"{text}, factor {rope.factor:g}"


def _window_fact(config: LlamaConfig) -> str:
    windows = [layer.window for layer in config.layers]
    sizes = sorted({window for window in windows if window is not None})
    if not sizes:
        return "none"
    num = sum(window is not None for window in windows)
    return f"{', '.join(map(str, sizes))} positions in {num} of {len(windows)} layers"
