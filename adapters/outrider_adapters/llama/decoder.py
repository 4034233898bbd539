"""`Decoder`: a Llama-family decoder in a checkpoint, alone or inside a larger model, before any weight is read."""

from __future__ import annotations

import re

import torch
from attrs import frozen

from outrider.checkpoint import Checkpoint, Config, TensorReader
from outrider.errors import CheckpointError
from outrider.types import ModelSpec, PositionScheme, RopeSpec
from outrider_adapters.llama.config import LlamaConfig, read_config
from outrider_adapters.llama.families import Family
from outrider_adapters.llama.model import LlamaStack, build_stack
from outrider_adapters.nn import WeightLoader

__all__ = ["PLAIN_NAMES", "Decoder", "DecoderNames"]


@frozen
class DecoderNames:
    """Where a checkpoint keeps a decoder: prefixes of ``embed_tokens``, ``layers`` and ``norm``, and of ``lm_head``.

    Each is a list of spellings in use, tried in order.
    """

    body: tuple[str, ...]
    head: tuple[str, ...]

    def embedding(self, checkpoint: Checkpoint) -> str | None:
        """Full name of the embedding, ``None`` where there is none."""
        return _find(checkpoint, self.body, "embed_tokens.weight")

    def stored_head(self, checkpoint: Checkpoint) -> str | None:
        """Full name of the head, ``None`` where none is stored."""
        return _find(checkpoint, self.head, "lm_head.weight")

    def num_layers(self, checkpoint: Checkpoint) -> int:
        """Layers that the tensors hold, 0 where there is none."""
        pattern = re.compile(f"(?:{'|'.join(map(re.escape, self.body))})layers\\.(\\d+)\\.")
        return max((int(match[1]) for name in checkpoint.tensors if (match := pattern.match(name))), default=-1) + 1


PLAIN_NAMES = DecoderNames(body=("model.", ""), head=("", "model."))
"""The names of a model that is a decoder and nothing else."""


@frozen
class Decoder:
    """A decoder's config and names, and the dtype it is stored in."""

    checkpoint: Checkpoint
    config: LlamaConfig
    names: DecoderNames
    dtype: torch.dtype

    @classmethod
    def read(cls, checkpoint: Checkpoint, config: Config, names: DecoderNames, family: Family | None = None) -> Decoder:
        """The decoder that ``config`` describes under ``names``; ``family`` where the config does not name one of ours.

        Raises:
            CheckpointError: no layers or no embedding, or see `read_config`.
        """
        num_layers = names.num_layers(checkpoint)
        if not num_layers:
            raise CheckpointError(
                f"{checkpoint.directory}: no tensor of a layer ({names.body[0]}layers.0.…) was found; the weights of the "
                "decoder are missing"
            )
        embedding = names.embedding(checkpoint)
        if embedding is None:
            raise CheckpointError(
                f"{checkpoint.directory}: no embedding was found, expected "
                f"{' or '.join(prefix + 'embed_tokens.weight' for prefix in names.body)}"
            )
        read = read_config(config, checkpoint.optional_json("generation_config.json"), num_layers, family)
        return cls(checkpoint, read, names, read.dtype or checkpoint.tensors[embedding].dtype)

    def spec(self, device: torch.device, dtype: torch.dtype) -> ModelSpec:
        """The decoder as the loop sees it."""
        config = self.config
        return ModelSpec(
            name=self.checkpoint.name,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            layers=config.layers,
            max_positions=config.max_positions,
            dtype=dtype,
            device=device,
            positions=PositionScheme(
                axes=1 if config.rope.sections is None else 3, needs_lengths=config.rope.kind == "dynamic"
            ),
            rope=config.rope,
        )

    def build(self, weights: WeightLoader, device: torch.device, dtype: torch.dtype, own_head: bool) -> LlamaStack:
        """The stack with weights from ``weights``, which notes what is missing or does not fit."""
        # Old checkpoints store the rope frequencies, which follow from the config.
        weights.ignore_ending("rotary_emb.inv_freq")
        names = self.names
        stack = build_stack(
            self.config, self.spec(device, dtype), weights.scope(*names.body), weights.scope(*names.head), own_head
        )
        if not self.config.tied and names.stored_head(self.checkpoint) is None:
            weights.problem(
                "tie_word_embeddings is false, so the head must be there; if it is the embedding, say "
                '"tie_word_embeddings": true in config.json'
            )
        return stack

    def own_head(self) -> tuple[bool, tuple[str, ...]]:
        """Whether the head is a tensor of its own, with notes; reads it where the config says that it is not.

        A stored head that differs from a tied embedding is its own, as in transformers.
        """
        if not self.config.tied:
            return True, ()
        stored, embedding = self.names.stored_head(self.checkpoint), self.names.embedding(self.checkpoint)
        if stored is None or embedding is None or _same(self.checkpoint.reader(), stored, embedding):
            return False, ()
        note = f"tie_word_embeddings is true, but '{stored}' differs from the embedding; the stored head is used"
        return True, (note,)

    def facts(self) -> tuple[tuple[str, str], ...]:
        """What the decoder is, for ``outrider inspect``."""
        config = self.config
        first = config.layers[0]
        bias = [
            name for name, there in (("qkv", config.qkv_bias), ("o", config.o_bias), ("mlp", config.mlp_bias)) if there
        ]
        facts = [
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


def _find(checkpoint: Checkpoint, prefixes: tuple[str, ...], name: str) -> str | None:
    return next((prefix + name for prefix in prefixes if prefix + name in checkpoint.tensors), None)


def _same(reader: TensorReader, head: str, embedding: str) -> bool:
    if reader.info(head).shape != reader.info(embedding).shape:
        return False
    return torch.equal(reader.take(head), reader.take(embedding))


def _rope_fact(rope: RopeSpec) -> str:
    text = f"{rope.kind}, theta {rope.theta:g}"
    if rope.sections is not None:
        text += f", axes {'/'.join(map(str, rope.sections))}"
    return text if rope.kind == "default" else f"{text}, factor {rope.factor:g}"


def _window_fact(config: LlamaConfig) -> str:
    windows = [layer.window for layer in config.layers]
    sizes = sorted({window for window in windows if window is not None})
    if not sizes:
        return "none"
    num = sum(window is not None for window in windows)
    return f"{', '.join(map(str, sizes))} positions in {num} of {len(windows)} layers"
