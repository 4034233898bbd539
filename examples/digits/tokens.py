"""The tokenizer and the processor of the pair: a byte-level BPE of its own, and CLIP's image processing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from examples.digits.dialogue import BEGIN, CHAT_TEMPLATE, END, IMAGE, PAD, every_text, random_dialogue
from examples.digits.render import IMAGE_MEAN, IMAGE_STD
from examples.digits.settings import CONTEXT, PATCH, SIDE, VOCAB_SIZE

__all__ = ["save_processor", "train_tokenizer"]

_SPECIALS = [END, BEGIN, PAD, IMAGE]
_CORPUS_DIALOGUES = 6000


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` ids over dialogues; encoding a text puts `BEGIN` in front of it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        show_progress=False,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_corpus(seed), trainer)
    begin_id = _SPECIALS.index(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin_id)]
    )
    return tokenizer


def save_processor(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer, chat template and image processing, as `AutoProcessor` reads them, into ``directory``."""
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers' own
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[IMAGE],
        model_max_length=CONTEXT,
    )
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(
        size=size, do_center_crop=False, crop_size=size, image_mean=[IMAGE_MEAN] * 3, image_std=[IMAGE_STD] * 3
    )
    processor = LlavaProcessor(  # type: ignore[no-untyped-call]  # transformers' own
        images,
        wrapped,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )
    processor.save_pretrained(directory)  # pyright: ignore[reportUnknownMemberType] - **kwargs


def _corpus(seed: int) -> Iterator[str]:
    rng = Random(seed)
    for index in range(_CORPUS_DIALOGUES):
        for segment in random_dialogue(rng, index % 3).segments:
            # Special tokens are no text: what is between them is learned.
            text = segment.text
            for special in _SPECIALS:
                text = text.replace(special, "")
            yield text
    for text in every_text():
        yield from [text] * 20
