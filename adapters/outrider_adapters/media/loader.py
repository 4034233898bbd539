"""`VisionLanguageLoader`: how a decoder and an image encoder of one checkpoint are checked, loaded and described."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import Description, LoadOptions, Target, TargetLoader, TextCodec
from outrider_adapters.codec import read_codec
from outrider_adapters.llama import Decoder, LlamaStack
from outrider_adapters.media.chat import MediaChat
from outrider_adapters.media.encoder import ImageEncoder
from outrider_adapters.media.provider import ImagePromptProvider, Placeholders
from outrider_adapters.nn import WeightLoader

__all__ = ["VisionLanguageLoader", "VisionLanguagePlan"]

_META = torch.device("meta")
_UNKNOWN = "\ue000"
"""A text for which no vocabulary has a token: a character for private use."""


class VisionLanguagePlan(Protocol):
    """One checkpoint, read and checked as far as its config and its files say; no weight is read yet."""

    @property
    @abstractmethod
    def decoder(self) -> Decoder:
        """The decoder."""
        ...

    @property
    @abstractmethod
    def placeholders(self) -> Placeholders:
        """Ids that stand for media."""
        ...

    @property
    @abstractmethod
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What the image encoder is, for ``outrider inspect``."""
        ...

    @abstractmethod
    def encoder(self, weights: WeightLoader, device: torch.device, dtype: torch.dtype) -> ImageEncoder:
        """The image encoder with weights from ``weights``, which notes what is missing or does not fit."""
        ...


class VisionLanguageLoader(TargetLoader):
    """Loads a target that reads images among text. A family says what is its own, and plans a checkpoint."""

    kind: str
    """Its ``model_type``."""
    architecture: str
    image_token: str
    """What stands for an image in text, where the checkpoint's processor does not say."""
    video_token: str | None = None
    """Likewise for a video, in families that read them."""

    @abstractmethod
    def plan(self, checkpoint: Checkpoint) -> VisionLanguagePlan:
        """The checkpoint, read and checked without its weights.

        Raises:
            CheckpointError: its config, its image processor or its tensor names do not describe a usable model.
        """
        ...

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` for a checkpoint whose architecture is ours, else why it is not."""
        found = checkpoint.architectures
        if self.architecture in found or (not found and checkpoint.config.get_optional_str("model_type") == self.kind):
            return None
        return f"its architecture is {', '.join(found) or 'not named'}, not {self.architecture}"

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Target:
        """The model on ``options.device``; its weights are in memory once, copied straight from the mapped files.

        Raises:
            CheckpointError: of the family, but faulty; found before any weight is read, all faults at once.
        """
        plan = self.plan(checkpoint)
        decoder = plan.decoder
        own_head, head_notes = decoder.own_head()
        dtype = options.dtype or decoder.dtype
        title = f"{checkpoint.directory}: the tensors do not fit config.json"
        _rehearse(plan, own_head).finish(title)
        weights = WeightLoader(checkpoint.reader(), options.device, dtype, options.progress)
        with torch.no_grad():
            stack, encoder = _build(plan, weights, options.device, dtype, own_head)
        weights.finish(title)
        codec = read_codec(checkpoint)
        if codec is not None and (problem := self._misplaced(checkpoint, codec, plan.placeholders)) is not None:
            raise CheckpointError(f"{checkpoint.directory}: {problem}")
        notes = (*decoder.config.notes, *head_notes)
        notes += codec.notes if codec is not None else ("no tokenizer was found, only token ids can be used",)
        tokenizer = checkpoint.directory / "tokenizer.json"
        return Target(
            stack,
            weights=stack.weights,
            codec=codec,
            media=ImagePromptProvider(stack, encoder, plan.placeholders, codec, MediaChat(checkpoint)),
            eos_ids=decoder.config.eos_ids,
            tokenizer_file=tokenizer if tokenizer.is_file() else None,
            notes=notes,
        )

    def describe(self, checkpoint: Checkpoint) -> Description:
        """What the checkpoint is and what is wrong with it, from config and tensor headers alone."""
        kind = f"target ({self.kind})"
        try:
            plan = self.plan(checkpoint)
            rehearsal = _rehearse(plan, own_head=not plan.decoder.config.tied)
        except CheckpointError as error:
            return Description(kind, (), problems=(str(error),))
        problems = list(rehearsal.problems())
        try:
            codec = read_codec(checkpoint)
            if codec is not None and (problem := self._misplaced(checkpoint, codec, plan.placeholders)) is not None:
                problems.append(problem)
        except CheckpointError as error:
            problems.append(str(error))
        decoder = plan.decoder
        facts = (
            ("architecture", self.architecture),
            ("parameters", f"{rehearsal.num_parameters:,}"),
            ("dtype", str(decoder.dtype).removeprefix("torch.")),
            *plan.facts,
            ("decoder", decoder.config.family.model_type),
            *decoder.facts(),
        )
        return Description(kind, facts, decoder.config.notes, tuple(problems))

    def _misplaced(self, checkpoint: Checkpoint, codec: TextCodec, ids: Placeholders) -> str | None:
        """Why ``ids`` cannot be those of placeholders: the tokenizer has others. ``None`` where it has none, or these."""
        # What stands around every text, and the one id that some vocabularies have for all that they do not know.
        others = {*codec.encode(""), *codec.encode(_UNKNOWN)}
        media = (
            ("image", self.image_token, ids.image, "'image_token_index' or 'image_token_id'"),
            ("video", self.video_token, ids.video, "'video_token_id'"),
        )
        for kind, usual, token_id, keys in media:
            text = _named_token(checkpoint, f"{kind}_token") or usual
            found = [] if text is None else [token for token in codec.encode(text) if token not in others]
            if token_id is not None and len(found) == 1 and found[0] != token_id:
                return (
                    f"{kind}s stand at token id {token_id}, but the tokenizer's {text!r} is id {found[0]}: other text would be "
                    f"taken for {kind}s; correct {keys} in config.json"
                )
        return None


def _named_token(checkpoint: Checkpoint, key: str) -> str | None:
    for name in ("processor_config.json", "tokenizer_config.json"):
        config = checkpoint.optional_json(name)
        said = None if config is None else config.values.get(key)
        if isinstance(said, str):
            return said
    return None


def _rehearse(plan: VisionLanguagePlan, own_head: bool) -> WeightLoader:
    """The account of a load that reads nothing: its faults and its number of parameters."""
    weights = WeightLoader(plan.decoder.checkpoint.reader(), _META, torch.float32)
    _build(plan, weights, _META, torch.float32, own_head)
    return weights


def _build(
    plan: VisionLanguagePlan, weights: WeightLoader, device: torch.device, dtype: torch.dtype, own_head: bool
) -> tuple[LlamaStack, ImageEncoder]:
    return plan.decoder.build(weights, device, dtype, own_head), plan.encoder(weights, device, dtype)
