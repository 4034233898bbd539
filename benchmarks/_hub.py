"""transformers as a contestant: ``generate`` with a dynamic cache, with a compiled static one, and with prompt lookup."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, CompileConfig, StaticCache
from transformers.utils import logging as hub_logging

from benchmarks._cases import TokenIds
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._race import Answer, Contestant
from outrider._torch import int_rows
from outrider.checkpoint import Checkpoint
from outrider_adapters.pairs import tiny

__all__ = ["CompiledPeer", "HubPeer"]

_PAD_ID = 2


class _Settings(Protocol):
    """The part of a generation config that is used."""

    eos_token_id: int | None


class _Generates(Protocol):
    """The part of a transformers model that is used; its own signature is untyped."""

    @property
    @abstractmethod
    def config(self) -> object: ...

    @property
    @abstractmethod
    def generation_config(self) -> _Settings: ...

    @abstractmethod
    def generate(self, **settings: object) -> Tensor: ...


class _Cache(Protocol):
    @abstractmethod
    def reset(self) -> None: ...


@frozen(eq=False)
class CompiledPeer:
    """A contestant whose forward pass is compiled, and how long its first answer took, compilation included."""

    contestant: Contestant
    first_seconds: float


class HubPeer:
    """A target as transformers runs it. End-of-sequence ids end nothing; every answer has as many tokens as were asked."""

    def __init__(self, device: torch.device, dtype: torch.dtype, target: Checkpoint | None = None) -> None:
        """The embedded target, or ``target``, whose tensors are read one by one; the weights are this peer's own."""
        hub_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
        module = _from_directory(dtype).to(device) if target is None else _from_tensors(target, device, dtype)
        self._device = device
        self._module = module.eval()
        self._model = cast("_Generates", self._module)
        self._model.generation_config.eos_token_id = None

    def plain(self, name: str = "transformers") -> Contestant:
        """Greedy ``generate`` with its default, dynamic cache; prompts of a batch are padded on the left and masked."""

        def generate(prompts: Sequence[TokenIds]) -> Answer:
            # A token a pass, whoever shares it.
            return Answer(self._generate(prompts, {}), MAX_NEW_TOKENS)

        return Contestant(name, generate)

    def prompt_lookup(self, num_tokens: int) -> Contestant:
        """Greedy ``generate`` that drafts by looking its last tokens up in the text so far; batch 1 only."""

        def generate(prompts: Sequence[TokenIds]) -> Answer:
            with _Passes(self._module) as passes:
                token_ids = self._generate(prompts, {"prompt_lookup_num_tokens": num_tokens})
            return Answer(token_ids, passes.count)

        return Contestant(f"transformers, prompt lookup {num_tokens}", generate)

    def compiled(
        self, groups: Sequence[Sequence[TokenIds]], name: str = "transformers, static, compiled"
    ) -> CompiledPeer:
        """Greedy ``generate`` with a static cache, compiled where the device is a CUDA one; ``groups``: all it will answer.

        As favourable as it can be: CUDA graphs ("reduce-overhead"), shapes that are fixed, a cache no larger than the longest
        answer needs and the same for every call, so that nothing is compiled or captured twice. On a CPU it isn't compiled.

        Raises:
            Exception: whatever the compiler raises where it does not work.
        """
        length = max(len(prompt) for group in groups for prompt in group) + MAX_NEW_TOKENS
        make_cache = cast("Callable[..., _Cache]", StaticCache)
        cache = make_cache(config=self._model.config, max_cache_len=length)
        settings: dict[str, object] = {"past_key_values": cache}
        if self._device.type == "cuda":
            settings["compile_config"] = CompileConfig(mode="reduce-overhead", dynamic=False)

        def generate(prompts: Sequence[TokenIds]) -> Answer:
            with torch.inference_mode():
                cache.reset()
            # Newer releases have another name for the argument, older ones only this.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return Answer(self._generate(prompts, settings), MAX_NEW_TOKENS)

        began = time.perf_counter()
        generate(groups[0])
        return CompiledPeer(Contestant(name, generate), time.perf_counter() - began)

    def _generate(self, prompts: Sequence[TokenIds], settings: Mapping[str, object]) -> tuple[TokenIds, ...]:
        width = max(len(prompt) for prompt in prompts)
        rows = [[_PAD_ID] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=self._device),
                attention_mask=torch.tensor(mask, device=self._device),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                pad_token_id=_PAD_ID,
                **settings,
            )
        return tuple(map(tuple, int_rows(output[:, width:])))


class _Passes:
    """Counts forward passes of a module while it is entered."""

    def __init__(self, module: nn.Module) -> None:
        self.count = 0
        self._handle: AbstractContextManager[object] = nullcontext()
        self._module = module

    def __enter__(self) -> _Passes:
        self._handle = self._module.register_forward_pre_hook(self._count)
        return self

    def __exit__(self, *raised: object) -> None:
        self._handle.__exit__(None, None, None)

    def _count(self, module: nn.Module, inputs: object) -> None:
        del module, inputs
        self.count += 1


def _from_directory(dtype: torch.dtype) -> nn.Module:
    loaded: object = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportUnknownMemberType] - untyped there
        tiny().target, dtype=dtype
    )
    return cast("nn.Module", loaded)


@torch.no_grad()
def _from_tensors(target: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model that ``target`` describes, built on ``device`` and filled tensor by tensor."""
    values = dict(target.config.values)
    make_config = cast(
        "Callable[..., object]",
        AutoConfig.for_model,  # pyright: ignore[reportUnknownMemberType] - untyped there
    )
    make_model = cast(
        "Callable[..., object]",
        AutoModelForCausalLM.from_config,  # pyright: ignore[reportUnknownMemberType] - untyped there
    )
    config = make_config(values.pop("model_type"), **values)
    with device:
        module = cast("nn.Module", make_model(config, dtype=dtype))
    unfilled: dict[str, Tensor] = dict(module.named_parameters())
    for name in target.tensors:
        unfilled.pop(name).copy_(target.files.read(name))
    assert not unfilled, f"the checkpoint lacks {', '.join(unfilled)}"
    return module
