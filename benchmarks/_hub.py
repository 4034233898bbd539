"""transformers as a contestant: ``generate`` with its default (dynamic) cache, and its own prompt-lookup drafting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hub_logging

from benchmarks._cases import TokenIds
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._race import Answer, Contestant
from outrider._torch import int_rows
from outrider_adapters.pairs import tiny

__all__ = ["HubPeer"]

_PAD_ID = 2
_EOS_ID = 0


class _Generates(Protocol):
    """The part of a transformers model that is used; its own signature is untyped."""

    @abstractmethod
    def generate(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        max_new_tokens: int,
        do_sample: bool,
        pad_token_id: int,
        prompt_lookup_num_tokens: int | None,
    ) -> Tensor: ...


class HubPeer:
    """The embedded target as transformers runs it."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        hub_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
        loaded: object = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportUnknownMemberType] - untyped there
            tiny().target, dtype=dtype
        )
        module = cast("nn.Module", loaded).to(device).eval()
        self._device = device
        self._passes = 0
        module.register_forward_pre_hook(self._count)
        self._model = cast("_Generates", module)

    def plain(self, name: str = "transformers") -> Contestant:
        """Greedy ``generate``; prompts of a batch are padded on the left and masked."""
        return Contestant(name, self._generator(None))

    def prompt_lookup(self, num_tokens: int) -> Contestant:
        """Greedy ``generate`` that drafts by looking its last tokens up in the text so far; batch 1 only."""
        return Contestant(f"transformers, prompt lookup {num_tokens}", self._generator(num_tokens))

    def _generator(self, lookup: int | None) -> Callable[[Sequence[TokenIds]], Answer]:
        def generate(prompts: Sequence[TokenIds]) -> Answer:
            width = max(len(prompt) for prompt in prompts)
            rows = [[_PAD_ID] * (width - len(prompt)) + list(prompt) for prompt in prompts]
            mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
            self._passes = 0
            with torch.inference_mode():
                output = self._model.generate(
                    input_ids=torch.tensor(rows, device=self._device),
                    attention_mask=torch.tensor(mask, device=self._device),
                    max_new_tokens=MAX_NEW_TOKENS,
                    do_sample=False,
                    pad_token_id=_PAD_ID,
                    prompt_lookup_num_tokens=lookup,
                )
            return Answer(tuple(_until_end(ids) for ids in int_rows(output[:, width:])), self._passes)

        return generate

    def _count(self, module: nn.Module, inputs: object) -> None:
        del module, inputs
        self._passes += 1


def _until_end(token_ids: list[int]) -> TokenIds:
    """``token_ids`` up to the end of the sequence, which belongs to it; padding follows."""
    length = token_ids.index(_EOS_ID) + 1 if _EOS_ID in token_ids else len(token_ids)
    return tuple(token_ids[:length])
