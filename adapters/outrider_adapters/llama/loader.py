"""`LlamaLoader`: recognises, explains and loads checkpoints of the Llama family."""

from __future__ import annotations

import re

import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import Description, LoadOptions, Target, TargetLoader
from outrider_adapters.codec import read_codec
from outrider_adapters.llama.config import FAMILIES, find_family
from outrider_adapters.llama.decoder import PLAIN_NAMES, Decoder
from outrider_adapters.nn import WeightLoader

__all__ = ["LlamaLoader", "loader"]

_META = torch.device("meta")
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
        if PLAIN_NAMES.embedding(checkpoint) is None:
            names = " or ".join(f"{prefix}embed_tokens.weight" for prefix in PLAIN_NAMES.body)
            return f"it holds no embedding (tensor {names}), so it is not a full model"
        return None

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Target:
        """The model on ``options.device``; its weights are in memory once, copied straight from the mapped files.

        Raises:
            CheckpointError: of the family, but faulty; found before any weight is read, all faults at once.
        """
        decoder = Decoder.read(checkpoint, checkpoint.config, PLAIN_NAMES)
        own_head, head_notes = decoder.own_head()
        notes = [*decoder.config.notes, *head_notes]
        dtype = options.dtype or decoder.dtype
        title = f"{checkpoint.directory}: the tensors do not fit config.json"
        _rehearse(decoder, own_head).finish(title)
        weights = WeightLoader(checkpoint.reader(), options.device, dtype, options.progress)
        with torch.no_grad():
            stack = decoder.build(weights, options.device, dtype, own_head)
        weights.finish(title)
        codec = read_codec(checkpoint)
        notes.extend(codec.notes if codec is not None else ("no tokenizer was found, only token ids can be used",))
        tokenizer = checkpoint.directory / "tokenizer.json"
        return Target(
            stack,
            weights=stack.weights,
            codec=codec,
            eos_ids=decoder.config.eos_ids,
            tokenizer_file=tokenizer if tokenizer.is_file() else None,
            notes=tuple(notes),
        )

    def describe(self, checkpoint: Checkpoint) -> Description:
        """What the checkpoint is and what is wrong with it, from config and tensor headers alone."""
        family = find_family(checkpoint.architectures, checkpoint.config.get_optional_str("model_type"))
        kind = f"target ({family.model_type if family is not None else 'unknown'})"
        try:
            decoder = Decoder.read(checkpoint, checkpoint.config, PLAIN_NAMES)
            rehearsal = _rehearse(decoder, own_head=not decoder.config.tied)
        except CheckpointError as error:
            return Description(kind, (), problems=(str(error),))
        facts = (
            ("architecture", decoder.config.family.architecture),
            ("parameters", f"{rehearsal.num_parameters:,}"),
            ("dtype", str(decoder.dtype).removeprefix("torch.")),
            *decoder.facts(),
        )
        return Description(kind, facts, decoder.config.notes, (*rehearsal.problems(), *_codec_problems(checkpoint)))


def _codec_problems(checkpoint: Checkpoint) -> tuple[str, ...]:
    try:
        read_codec(checkpoint)
    except CheckpointError as error:
        return (str(error),)
    return ()


def _rehearse(decoder: Decoder, own_head: bool) -> WeightLoader:
    """The account of a load that reads nothing: its faults and its number of parameters."""
    weights = WeightLoader(decoder.checkpoint.reader(), _META, torch.float32)
    decoder.build(weights, _META, torch.float32, own_head)
    return weights
