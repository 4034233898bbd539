"""transformers as a contestant that reads images: `LlavaForConditionalGeneration.generate` with its default cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from io import BytesIO
from typing import Protocol, cast

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration
from transformers.utils import logging as hub_logging

from benchmarks._cases import TokenIds
from benchmarks._digits import MAX_NEW_TOKENS, Question
from benchmarks._race import Answer, Contestant
from outrider._torch import int_rows
from outrider.checkpoint import Checkpoint
from outrider_adapters.media import process, read_image_processor
from outrider_adapters.pairs import tiny_llava

__all__ = ["seeing_peer"]

_PAD_ID, _END_ID = 2, 0


class _Generates(Protocol):
    """The part of a transformers model that is used; its own signature is untyped."""

    @abstractmethod
    def generate(self, **settings: object) -> Tensor: ...


def seeing_peer(name: str, device: torch.device, dtype: torch.dtype, questions: Sequence[Question]) -> Contestant:
    """Greedy ``generate`` on ``questions``; files are decoded and processed within its time.

    Prompts of a batch are padded on the left and masked; every answer ends with its end-of-sequence id.
    """
    hub_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    directory = tiny_llava().target
    loaded: object = LlavaForConditionalGeneration.from_pretrained(directory, dtype=dtype)  # pyright: ignore[reportUnknownMemberType] - untyped there
    model = cast("_Generates", cast("nn.Module", loaded).to(device).eval())
    processor = read_image_processor(Checkpoint(directory))
    files = {question.token_ids: question.images for question in questions}

    def generate(prompts: Sequence[TokenIds]) -> Answer:
        images = [Image.open(BytesIO(data)).convert("RGB") for prompt in prompts for data in files[prompt]]
        width = max(map(len, prompts))
        inputs: dict[str, object] = {
            "input_ids": torch.tensor(
                [[_PAD_ID] * (width - len(each)) + list(each) for each in prompts], device=device
            ),
            "attention_mask": torch.tensor(
                [[0] * (width - len(each)) + [1] * len(each) for each in prompts], device=device
            ),
        }
        if images:
            inputs["pixel_values"] = process(processor, images)["pixel_values"].to(device, dtype)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, pad_token_id=_PAD_ID)
        answers = tuple(_ended(row) for row in int_rows(output[:, width:]))
        # A token a pass, whoever shares it.
        return Answer(answers, max(map(len, answers)), (1,) * sum(len(answer) - 1 for answer in answers))

    return Contestant(name, generate)


def _ended(row: Sequence[int]) -> TokenIds:
    """Up to the end of the answer, which padding follows."""
    return tuple(row[: row.index(_END_ID) + 1]) if _END_ID in row else tuple(row)
